"""Examples in memory: splits over arrays and nests of them, and reading of `.npz` files."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.images.normalization import Normalization
from trainer.datasets.splits.batches import PaddedRows
from trainer.protocols import paths
from trainer.text import first_line

_DIGEST_ROWS = 4096


class NestSplit:
    """A split held in host memory: nests (dict, tuple) of arrays, each in its own dtype.

    Attributes:
        arrays: `features`, and maybe `label` and `sample_weight`: nests of columns [N, ...].
        unit: how many stay together in training; 0: all.
    """

    in_memory = True

    def __init__(self, batch: Mapping[str, Any], unit: int = 1) -> None:
        rows = len(tf.nest.flatten(batch)[0])
        self.num_examples = rows - rows % (unit or 1)
        self.unit = unit
        self.arrays = dict(batch)

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of all examples, [N, ...]; None: not one array."""
        label = self.arrays.get("label")
        return label if isinstance(label, np.ndarray) else None

    def fetch(self, indices: tf.Tensor) -> dict[str, Any]:
        """Return the examples `indices`, [B] int64: nests of tensors, [B, ...]."""
        constants = self._tensors
        # On the host, on any device of the caller: texts can be nowhere else.
        with tf.device("CPU:0"):
            gathered = [_rows(*column, indices) for column in constants]
        return with_whole_labels(tf.nest.pack_sequence_as(self.arrays, gathered))

    def digest(self) -> str:
        """Return a text that changes with the structure, the number and (some of) the examples."""
        rows = np.unique(np.linspace(0, self.num_examples - 1, _DIGEST_ROWS).astype(np.int64))
        return digest_of(
            tf.nest.map_structure(lambda array: array[rows], self.arrays), self.num_examples
        )

    @cached_property
    def _tensors(self) -> list[tuple[list[tf.Tensor], tuple[int | None, ...]]]:
        """Of each column its rows, their sizes where these differ, and the shape of a row."""
        return [
            (
                on_host(column.array, column.sizes)
                if isinstance(column, PaddedRows)
                else on_host(column),
                column.shape[1:],
            )
            for column in tf.nest.flatten(self.arrays)
        ]


def _rows(
    column: Sequence[tf.Tensor], shape: tuple[int | None, ...], indices: tf.Tensor
) -> tf.Tensor:
    """Return rows, [B, ...]; those of several sizes padded to the largest of these."""
    rows, *sizes = (tf.gather(values, indices) for values in column)
    if not sizes:
        return rows
    largest = tf.cast(tf.maximum(tf.reduce_max(sizes[0], axis=0), 0), tf.int32)
    cut = tf.slice(rows, [0] * rows.shape.rank, tf.concat([[-1], largest], axis=0))
    return tf.ensure_shape(cut, [*indices.shape, *shape])


class ArraySplit(NestSplit):
    """A split of two arrays (uint8 images stay uint8: a quarter of float32).

    Attributes:
        hashes: [N] in [0, 1), by which examples go into a validation split; None: by their numbers.
    """

    hashes: np.ndarray | None = None

    def __init__(self, features: np.ndarray, labels: np.ndarray | None):
        """Take features [N, ...], and labels: classes [N] or flags [N, labels], or targets."""
        arrays = {"features": features}
        if labels is not None:
            arrays["label"] = labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)
        super().__init__(arrays)


def on_host(*arrays: np.ndarray | None) -> list[tf.Tensor]:
    """Return arrays, without those that are None, as constants in the host's memory.

    To be called once, at the first use: a tensor that is older than a multi-worker strategy would
    belong to a context that is gone. `init_scope` lifts it out of a function being traced, which
    then captures it by reference, without a copy.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return [tf.constant(values) for values in arrays if values is not None]


def digest_of(nest: Any, count: int) -> str:
    """Return a digest of a nest of arrays, and of a number."""
    digest = hashlib.sha256(str(count).encode())
    for path, array in zip(paths(nest), tf.nest.flatten(nest), strict=True):
        digest.update(f"{path} {array.dtype} {array.shape}".encode())
        is_text = array.dtype.kind == "O"
        digest.update(repr(array.tolist()).encode() if is_text else array.tobytes())
    return digest.hexdigest()


def with_whole_labels(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch, or an example, with labels of whole numbers, and of flags, as int64."""
    if "label" not in batch:
        return batch

    def widened(label: tf.Tensor) -> tf.Tensor:
        is_whole = label.dtype.is_integer or label.dtype.is_bool
        return tf.cast(label, tf.int64) if is_whole else label

    return {**batch, "label": tf.nest.map_structure(widened, batch["label"])}


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
