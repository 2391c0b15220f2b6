"""A cache of examples as `fetch` returns them: read and decoded, before any augmentation.

It fills as examples are trained on or evaluated, so nothing is read before it is needed, and what
an interrupted run has read is there for the next one. Every example has a checksum: what is half
written, or damaged on the disk, counts as absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import zlib
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from trainer.protocols import SplitDefaults, with_defaults
from trainer.user_cache import FOLDER, make_room, mark_used

logger = logging.getLogger(__name__)

_VERSION = 2  # of the layout; part of the name

_Dataset = TypeVar("_Dataset")


def with_cache(dataset: _Dataset, kind: str) -> _Dataset:
    """Return the dataset with a cache of each split, whose `identity` names its contents.

    Raises:
        ValueError: examples depend on random numbers, or they do not fit.
    """
    if kind == "none":
        return dataset
    whole: Any = dataset
    if with_defaults(whole.train, SplitDefaults).augments:
        raise ValueError(
            f"cache ({kind}): with augment.min_area another part of an image is decoded each "
            "time; set augment.min_area=0, or dataset.cache=none"
        )
    splits = {name: getattr(whole, name) for name in ("train", "validation", "test")}
    filled = {name: split for name, split in splits.items() if split and split.num_examples}
    cached: _Dataset = replace(whole, **{name: CachedSplit(x) for name, x in filled.items()})
    return cached


class CachedSplit:
    """A split whose examples are kept once they were fetched.

    They are rows of a file that other processes have too. Several may write the same example: all
    write the same.
    """

    in_memory = False
    augments = False

    def __init__(self, split: Any) -> None:
        """Take the split, and open its cache; raise a ValueError if it does not fit."""
        self._split = split
        self.num_examples: int = split.num_examples
        traced = tf.function(split.fetch).get_concrete_function(tf.TensorSpec([1], tf.int64))
        self._spec: dict[str, tf.Tensor] = dict(sorted(traced.structured_outputs.items()))
        columns = [
            (name, values.dtype.as_numpy_dtype, tuple(values.shape[1:]))
            for name, values in self._spec.items()
        ]
        row = np.dtype([("checksum", np.uint32), *columns])  # without gaps
        # Another version of TensorFlow may decode differently.
        rule = json.dumps([_VERSION, tf.__version__, str(row)])
        name = hashlib.sha256(f"{rule}\n{split.identity()}".encode()).hexdigest()[:24]
        self._rows = open_rows(name, row, self.num_examples)

    @property
    def labels(self) -> Any:
        return with_defaults(self._split, SplitDefaults).labels

    @property
    def hashes(self) -> Any:
        return with_defaults(self._split, SplitDefaults).hashes

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what `fetch` of the split returns for the examples `indices`, [B] int64."""
        if self._rows is None:
            batch: dict[str, tf.Tensor] = self._split.fetch(indices)
            return batch
        with tf.device("CPU:0"):
            types = [values.dtype for values in self._spec.values()]
            is_kept, *kept = tf.numpy_function(self._read, [indices], [tf.bool, *types])

            def fetch() -> list[tf.Tensor]:
                batch = self._split.fetch(indices)
                values = [batch[name] for name in self._spec]
                written = tf.numpy_function(self._write, [indices, *values], [])
                with tf.control_dependencies([written]):
                    return [tf.identity(value) for value in values]

            result = tf.cond(is_kept, lambda: kept, fetch)
            for values, spec in zip(result, self._spec.values(), strict=True):
                values.set_shape([*indices.shape, *spec.shape[1:]])
            return dict(zip(self._spec, result, strict=True))

    def _read(self, indices: np.ndarray) -> list[Any]:
        """Return whether all examples are there, and their columns, [B, ...]; else empty ones."""
        rows: Any = self._rows
        rows = rows[indices]
        is_kept = np.array_equal(rows["checksum"], _checksums(rows))
        rows = rows if is_kept else rows[:0]
        return [np.bool_(is_kept), *(rows[name].copy() for name in self._spec)]

    def _write(self, indices: np.ndarray, *columns: np.ndarray) -> None:
        """Keep examples; not those without weight, so that damaged files are reported again."""
        kept: Any = self._rows
        if not kept.flags.writeable:
            return
        rows = np.zeros(len(indices), kept.dtype)
        for name, values in zip(self._spec, columns, strict=True):
            rows[name] = values
        rows["checksum"] = _checksums(rows)
        good = rows["weight"] != 0 if "weight" in self._spec else np.ones(len(rows), bool)
        kept[indices[good]] = rows[good]


def _checksums(rows: np.ndarray) -> list[int]:
    """Return a number for each row, never 0, of all that follows its first field."""
    content = rows.view(np.uint8).reshape(len(rows), rows.itemsize)
    return [zlib.crc32(row[4:]) or 1 for row in content]


def open_rows(name: str, row: np.dtype, count: int) -> np.ndarray | None:
    """Return the rows of that name, [count], which other processes may be writing too.

    Returns:
        An array, read-only if the file belongs to another user; None: the folder of the cache
        cannot be written and has no such file, which was logged.

    Raises:
        ValueError: they do not fit.
    """
    file = FOLDER.expanduser() / f"examples-{name}.bin"
    size = row.itemsize * count
    try:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX)
                if os.fstat(opened.fileno()).st_size != size:
                    make_room(file, size)
                    _allocate(opened.fileno(), size)
            mark_used(file)
            return np.memmap(file, row, "r+", shape=(count,))
        except OSError:
            if not file.is_file() or file.stat().st_size != size:
                raise
            return np.memmap(file, row, "r", shape=(count,))
    except OSError as error:
        logger.warning("cannot keep examples in %s (%s): they are not cached", file.parent, error)
        return None


def _allocate(descriptor: int, size: int) -> None:
    """Give a file all its space, of zeros, for a full disk would end the process later."""
    status = os.fstatvfs(descriptor)
    if size > (free := status.f_bavail * status.f_frsize):
        raise ValueError(
            f"cache (disk) needs {_gib(size)}, but {FOLDER} has {_gib(free)} free; make room "
            "there, use smaller images, or dataset.cache=none"
        )
    os.posix_fallocate(descriptor, 0, size)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
