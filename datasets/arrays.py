"""Examples that fit in memory: a split over two numpy arrays, and the reading and checking of `.npz` files."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf


class ArraySplit:
    """A split held in host memory in its own dtype (uint8 images stay uint8: a quarter of float32).

    Attributes:
        num_examples: how many examples there are.
        resident: True, `fetch` only indexes memory.
    """

    resident = True

    def __init__(self, features: np.ndarray, labels: np.ndarray):
        """Takes features [N, ...] of any dtype and labels [N] of any integer dtype."""
        self.num_examples = len(features)
        self._features = features
        self._labels = labels.astype(np.int64)
        self._constants: tuple[tf.Tensor, tf.Tensor] | None = None

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Gives `features` [B, ...] and `label` [B] int64 of the examples at `indices`, [B] int64."""
        features, labels = self._tensors()
        # On the host, whatever device the caller is on: the data must not take up an accelerator's memory.
        with tf.device("CPU:0"):
            return {"features": tf.gather(features, indices), "label": tf.gather(labels, indices)}

    def _tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        # Made once, at first use: a tensor made before a multi-worker strategy would belong to a context that is gone.
        # `init_scope` lifts it out of a function being traced, which then captures it by reference, without a copy.
        if self._constants is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._constants = tf.constant(self._features), tf.constant(self._labels)
        return self._constants


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Reads the arrays called `keys` from an `.npz` file; never unpickles.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not an `.npz` file, or a key is missing from it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"path ({path}): no such file; give an .npz file with the keys {', '.join(keys)}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive if key in keys}
            found = sorted(archive)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, AttributeError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"path ({path}) cannot be read as an .npz file of plain arrays: {reason}; was it cut short?") from error
    if missing := [key for key in keys if key not in arrays]:
        raise ValueError(f"path ({path}) lacks the keys {missing}, it has {found}; needed are {', '.join(keys)}")
    return arrays


def check_pair(where: str, features: np.ndarray, labels: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
    """Checks that features are [N, *shape] uint8 and labels [N] integers in [0, num_classes), N at least 1.

    Raises:
        ValueError: they are not; the line starts with `where`.
    """
    wanted = f"[N, {', '.join(map(str, shape))}] uint8"
    if features.shape[1:] != shape or features.dtype != np.uint8:
        raise ValueError(f"{where}: images are {list(features.shape)} {features.dtype}, they must be {wanted}")
    if len(features) == 0:
        raise ValueError(f"{where}: there are no images, at least one is needed")
    if labels.shape != (len(features),) or labels.dtype.kind not in "iu":
        raise ValueError(f"{where}: labels are {list(labels.shape)} {labels.dtype}, they must be [{len(features)}] integers")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"{where}: labels go from {labels.min()} to {labels.max()}, they must be in 0..{num_classes - 1}")


@dataclass(frozen=True, kw_only=True)
class ArrayDataset:
    """Arrays of numbers as a dataset, without augmentation: the least that a dataset of one's own needs.

    Attributes:
        train: the split that is trained on.
        test: the split that is evaluated.
        input_shape: shape of one example's features.
        num_classes: how many classes `label` counts.
        num_draws: random numbers for each example; none.
    """

    train: ArraySplit
    test: ArraySplit
    input_shape: tuple[int, ...]
    num_classes: int
    num_draws: int = 0

    def transform(self, batch: dict[str, tf.Tensor], draws: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Gives the features as float32, [B, *input_shape]; `draws` is not used."""
        return {**batch, "features": tf.cast(batch["features"], tf.float32)}
