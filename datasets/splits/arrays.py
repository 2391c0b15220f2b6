"""In-memory examples: a split over two NumPy arrays, and reading of `.npz` files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.images.normalization import Normalization
from trainer.text import first_line


class ArraySplit:
    """A split held in host memory in its own dtype (uint8 images stay uint8: a quarter of float32).

    Attributes:
        arrays: features and labels, by name.
        hashes: [N] in [0, 1), by which examples go into a validation split; None: by their numbers.
    """

    in_memory = True
    hashes: np.ndarray | None = None

    def __init__(self, features: np.ndarray, labels: np.ndarray | None):
        """Take features [N, ...], and labels: classes [N] or flags [N, labels], or targets."""
        self.num_examples = len(features)
        self.arrays = {"features": features}
        if labels is not None:
            is_number = labels.dtype.kind == "f"
            self.arrays["label"] = labels.astype(np.float32 if is_number else np.int64)

    @property
    def labels(self) -> np.ndarray | None:
        return self.arrays.get("label")

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `features` [B, ...] and `label` of the examples `indices`, [B] int64.

        Labels are int64, and targets float32.
        """
        constants = self._tensors
        # On the host, on any device of the caller: the data must not fill an accelerator's memory.
        with tf.device("CPU:0"):
            gathered = [tf.gather(values, indices) for values in constants]
        return dict(zip(self.arrays, gathered, strict=True))

    @cached_property
    def _tensors(self) -> list[tf.Tensor]:
        return on_host(*self.arrays.values())


def on_host(*arrays: np.ndarray | None) -> list[tf.Tensor]:
    """Return arrays, without those that are None, as constants in the host's memory.

    To be called once, at the first use: a tensor that is older than a multi-worker strategy would
    belong to a context that is gone. `init_scope` lifts it out of a function being traced, which
    then captures it by reference, without a copy.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return [tf.constant(values) for values in arrays if values is not None]


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Read the arrays called `keys` from an `.npz` file; never unpickle.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not an `.npz` file, or a key is missing from it.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"path ({path}): no such file; give an .npz file with the keys {', '.join(keys)}"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive if key in keys}
            available = sorted(archive)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"path ({path}) cannot be read as an .npz file of plain arrays: {first_line(error)}; "
            "was it cut short?"
        ) from error
    if missing := [key for key in keys if key not in arrays]:
        raise ValueError(
            f"path ({path}) lacks the keys {missing}, it has {available}; "
            f"needed are {', '.join(keys)}"
        )
    return arrays


def check_pair(
    source: str, features: np.ndarray, labels: np.ndarray, shape: tuple[int, ...], num_classes: int
) -> None:
    """Raise unless features are [N, *shape] uint8, labels [N] in [0, num_classes), and N >= 1.

    Raises:
        ValueError: they are not; the line starts with `source`.
    """
    expected = f"[N, {', '.join(map(str, shape))}] uint8"
    if features.shape[1:] != shape or features.dtype != np.uint8:
        raise ValueError(
            f"{source}: images are {list(features.shape)} {features.dtype}, they must be {expected}"
        )
    if len(features) == 0:
        raise ValueError(f"{source}: there are no images, at least one is needed")
    if labels.shape != (len(features),) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{source}: labels are {list(labels.shape)} {labels.dtype}, "
            f"they must be [{len(features)}] integers"
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"{source}: labels go from {labels.min()} to {labels.max()}, "
            f"they must be in 0..{num_classes - 1}"
        )


@dataclass(frozen=True, kw_only=True)
class ArrayDataset:
    """Arrays of numbers as a dataset without augmentation: the minimum for your own dataset.

    Attributes:
        num_classes: how many classes `label` counts; or how many targets or flags it has.
        label_kind: `class`: `label` is [B] integers; `number`: [B] or [B, targets] float32;
            `multilabel`: [B, labels] integers, 0 or 1.
        normalize: what is subtracted from the features and divided by, one number or one for each
            index of the last dimension; None: nothing.

    Raises:
        ValueError: `normalize` does not suit the features.
    """

    train: Any
    test: Any
    input_shape: tuple[int, ...]
    num_classes: int
    validation: Any = None
    num_draws: int = 0
    class_names: Sequence[str] | None = None
    label_kind: str = "class"
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        if self.normalize is not None:
            self.normalize.check(self.input_shape[-1] if self.input_shape else 1)

    def transform(
        self, batch: dict[str, tf.Tensor], draws: tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        """Cast the features to float32, [B, *input_shape], and normalize; `draws` is not used."""
        features = tf.cast(batch["features"], tf.float32)
        if self.normalize is not None:
            features = self.normalize.apply(features)
        return {**batch, "features": features}
