"""A cache of examples as `fetch` returns them: read and decoded, before any augmentation.

It fills as examples are trained on or evaluated, so nothing is read before it is needed, and what
an interrupted run has read is there for the next one. Every example has a checksum, which is
written last: what is half written, or damaged on the disk, counts as absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.splits.paths import replacing
from trainer.protocols import SplitDefaults, with_defaults
from trainer.user_cache import FOLDER, make_room, mark_used

_VERSION = 1  # of the layout; part of the name
_ALIGNMENT = 64


def with_cache(dataset: Any, kind: str) -> Any:
    """Return the dataset with a cache of each split, whose `identity` names its contents.

    Raises:
        ValueError: examples depend on random numbers, or they do not fit.
    """
    if kind == "none":
        return dataset
    if with_defaults(dataset.train, SplitDefaults).augments:
        raise ValueError(
            f"cache ({kind}): with augment.min_area another part of an image is decoded each "
            "time; set augment.min_area=0, or dataset.cache=none"
        )
    splits = {name: getattr(dataset, name) for name in ("train", "validation", "test")}
    return replace(
        dataset,
        **{
            name: CachedSplit(split)
            for name, split in splits.items()
            if split and split.num_examples
        },
    )


class CachedSplit:
    """A split whose examples are kept once they were fetched."""

    in_memory = False
    augments = False

    def __init__(self, split: Any) -> None:
        """Take the split, and open its cache; raise a ValueError if it does not fit."""
        self._split = split
        self.num_examples: int = split.num_examples
        traced = tf.function(split.fetch).get_concrete_function(tf.TensorSpec([1], tf.int64))
        self._spec: dict[str, tf.Tensor] = dict(sorted(traced.structured_outputs.items()))
        self._table = _open_table(split, self._spec)

    @property
    def labels(self) -> Any:
        return with_defaults(self._split, SplitDefaults).labels

    @property
    def hashes(self) -> Any:
        return with_defaults(self._split, SplitDefaults).hashes

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what `fetch` of the split returns for the examples `indices`, [B] int64."""
        table = self._table
        if table is None:
            batch: dict[str, tf.Tensor] = self._split.fetch(indices)
            return batch
        with tf.device("CPU:0"):
            types = [values.dtype for values in self._spec.values()]
            is_kept, *kept = tf.numpy_function(table.read, [indices], [tf.bool, *types])

            def fetch() -> list[tf.Tensor]:
                batch = self._split.fetch(indices)
                values = [batch[name] for name in self._spec]
                written = tf.numpy_function(table.write, [indices, *values], [])
                with tf.control_dependencies([written]):
                    return [tf.identity(value) for value in values]

            result = tf.cond(is_kept, lambda: kept, fetch)
            for values, spec in zip(result, self._spec.values(), strict=True):
                values.set_shape([*indices.shape, *spec.shape[1:]])
            return dict(zip(self._spec, result, strict=True))


class _Table:
    """Examples in bytes that are shared with other processes.

    Several may write the same example: all write the same.
    """

    def __init__(self, content: np.ndarray, columns: dict[str, tuple[np.dtype, tuple[int, ...]]]):
        """Take the bytes, [num_bytes] uint8, and the type and shape, [N, ...], of the columns."""
        self._is_writable = content.flags.writeable
        self._names = [name for name in columns if name != "checksum"]
        self._arrays: dict[str, np.ndarray] = {}
        start = 0
        for name, (dtype, shape) in columns.items():
            end = start + num_bytes(dtype, shape)
            self._arrays[name] = content[start:end].view(dtype)[: np.prod(shape)].reshape(shape)
            start = end

    def read(self, indices: np.ndarray) -> list[Any]:
        """Return whether all examples are there, and their columns, [B, ...]; else empty ones."""
        expected = self._arrays["checksum"][indices]
        if expected.all():
            columns = [np.take(self._arrays[name], indices, axis=0) for name in self._names]
            if (_checksums(columns) == expected).all():
                return [np.bool_(True), *columns]
        return [np.bool_(False), *(self._arrays[name][:0] for name in self._names)]

    def write(self, indices: np.ndarray, *columns: np.ndarray) -> None:
        """Keep examples; not those without weight, so that damaged files are reported again."""
        if not self._is_writable:
            return
        checksums = _checksums(columns)
        if "weight" in self._names:
            good = columns[self._names.index("weight")] != 0
            indices, checksums = indices[good], checksums[good]
            columns = tuple(column[good] for column in columns)
        for name, values in zip(self._names, columns, strict=True):
            self._arrays[name][indices] = values
        self._arrays["checksum"][indices] = checksums


def num_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Return the room of a column."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _checksums(columns: Any) -> np.ndarray:
    """Return a number for each row of columns, [B, ...] each, never 0; [B] uint32."""
    sums = []
    for row in zip(*(np.ascontiguousarray(column) for column in columns), strict=True):
        value = 0
        for part in row:
            value = zlib.crc32(part, value)
        sums.append(value or 1)
    return np.array(sums, np.uint32)


def _open_table(split: Any, spec: dict[str, tf.Tensor]) -> _Table | None:
    columns = {"checksum": (np.dtype(np.uint32), (split.num_examples,))}
    for name, values in spec.items():
        columns[name] = (
            np.dtype(values.dtype.as_numpy_dtype),
            (split.num_examples, *values.shape[1:]),
        )
    layout = {name: [dtype.str, shape] for name, (dtype, shape) in columns.items()}
    # Another version of TensorFlow may decode differently.
    rule = json.dumps([_VERSION, tf.__version__, layout])
    name = hashlib.sha256(f"{rule}\n{split.identity()}".encode()).hexdigest()[:24]
    content = open_bytes(name, sum(num_bytes(*column) for column in columns.values()))
    return None if content is None else _Table(content, columns)


logger = logging.getLogger(__name__)


def open_bytes(name: str, size: int) -> np.ndarray | None:
    """Return the bytes of that name, [size] uint8, which other processes may be writing too.

    Returns:
        An array, read-only if the file belongs to another user; None: the folder of the cache
        cannot be written and has no such file, which was logged.

    Raises:
        ValueError: they do not fit.
    """
    folder = FOLDER.expanduser()
    try:
        return _open_file(folder / f"examples-{name}.bin", size)
    except OSError as error:
        logger.warning("cannot keep examples in %s (%s): they are not cached", folder, error)
        return None


def _open_file(file: Path, size: int) -> np.ndarray:
    try:
        with _locked(file.with_suffix(".lock")):
            if not file.is_file() or file.stat().st_size != size:
                _make(file, size)
        mark_used(file)
        return np.memmap(file, np.uint8, "r+")
    except OSError:
        if not file.is_file():
            raise
        return np.memmap(file, np.uint8, "r")


def _make(file: Path, size: int) -> None:
    """Put a file of zeros in place, with all its space, for a full disk would end the process."""
    make_room(file, size)
    status = os.statvfs(file.parent)
    if size > (free := status.f_bavail * status.f_frsize):
        raise ValueError(
            f"cache (disk) needs {_gib(size)}, but {file.parent} has {_gib(free)} free; make room "
            "there, use smaller images, or dataset.cache=none"
        )
    with replacing(file) as out:
        os.posix_fallocate(out.fileno(), 0, size)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a file's lock, which ends with the process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
