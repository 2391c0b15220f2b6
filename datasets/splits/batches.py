"""Batches as a program makes them: of generators and Keras' sequences, and rows of several lengths.

No TensorFlow.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from trainer.text import first_line

_END = object()


@dataclass(frozen=True)
class PaddedRows:
    """Rows of batches that are of several shapes, padded to the largest one.

    Attributes:
        array: the rows, [N, ...].
        sizes: the shape of each row as its batch had it, [N, rank].
    """

    array: np.ndarray
    sizes: np.ndarray

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape; None where rows differ."""
        if not len(self):
            return (0, *[None] * (self.array.ndim - 1))
        same = (self.sizes == self.sizes[:1]).all(axis=0)
        inner = zip(self.sizes[0].tolist(), same, strict=True)
        return (len(self), *(size if is_same else None for size, is_same in inner))

    @property
    def nbytes(self) -> int:
        return self.array.nbytes + self.sizes.nbytes

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> PaddedRows:
        return PaddedRows(self.array[rows], self.sizes[rows])

    def astype(self, dtype: Any, copy: bool = True) -> PaddedRows:
        return PaddedRows(self.array.astype(dtype, copy=copy), self.sizes)

    def tolist(self) -> list[Any]:
        return [self.array.tolist(), self.sizes.tolist()]

    def tobytes(self) -> bytes:
        return self.array.tobytes() + self.sizes.tobytes()


Column: TypeAlias = np.ndarray | PaddedRows
"""The rows of all batches, [N, ...]."""


def content(column: Column) -> bytes:
    """Return what distinguishes a column from others of its shape."""
    is_text = column.dtype == object
    return repr(column.tolist()).encode() if is_text else column.tobytes()


def joined(batches: Sequence[np.ndarray]) -> Column:
    """Return the rows of batches [B, ...] as one array; where they differ in shape, padded."""
    shapes = [batch.shape[1:] for batch in batches]
    if len(set(shapes)) == 1:
        return np.concatenate(batches)
    if len({len(shape) for shape in shapes}) > 1:
        listed = " and ".join(map(str, sorted(set(shapes), key=len)[:: len(set(shapes)) - 1]))
        raise ValueError(f"its batches differ in rank, such as {listed}; use one rank")
    largest = np.max(shapes, axis=0)

    def padded(batch: np.ndarray) -> np.ndarray:
        # Of the same number of bytes or letters: as objects.
        batch = batch.astype(object) if batch.dtype.kind in "SU" else batch
        lacking = largest - batch.shape[1:]
        fill: Any = {"constant_values": _nothing(batch)} if batch.dtype == object else {}
        return np.pad(batch, [(0, 0), *((0, int(size)) for size in lacking)], **fill)

    sizes = np.repeat(np.asarray(shapes, np.int64), [len(batch) for batch in batches], axis=0)
    return PaddedRows(np.concatenate(list(map(padded, batches))), sizes)


def _nothing(texts: np.ndarray) -> str | bytes:
    return b"" if texts.size and isinstance(texts.flat[0], bytes) else ""


def map_arrays(change: Callable[[Any, str], Any], value: Any, title: str) -> Any:
    """Return a nest of what `change` makes of each array and its title.

    A mapping becomes a dict; a tuple, and a list of arrays, becomes a tuple.

    Raises:
        ValueError: a mapping or a tuple is empty.
    """
    is_mapping = isinstance(value, Mapping)
    is_list = isinstance(value, list) and any(
        isinstance(part, Mapping) or getattr(part, "shape", ()) for part in value
    )
    if not (is_mapping or is_list or isinstance(value, tuple)):
        return change(value, title)
    if not value:
        raise ValueError(f"{title} is an empty {type(value).__name__}")
    pairs = value.items() if is_mapping else enumerate(value)
    parts = {key: map_arrays(change, part, f"{title}[{key!r}]") for key, part in pairs}
    if is_mapping:
        return {str(key): part for key, part in parts.items()}
    return tuple(parts.values())


def as_column(value: Any, title: str, way_out: str) -> Column:
    """Return an array [N, ...]: floating-point numbers as float32, texts as objects.

    Raises:
        ValueError: it is none, or of other types than numbers and texts.
    """
    if isinstance(value, PaddedRows):
        return value
    if not hasattr(value, "__array__") and not isinstance(value, Sequence):
        raise ValueError(f"{title} is a {type(value).__name__}, it must be an array; {way_out}")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{title} cannot be made an array: {first_line(error)}; pad it to one length"
        ) from error
    if array.ndim == 0:
        raise ValueError(f"{title} is a single value, it must have one for each example")
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32)
    if array.dtype.kind in "biuc":
        return np.ascontiguousarray(array)
    if array.dtype.kind not in "OUST":
        raise ValueError(f"{title} is an array of {array.dtype}; convert it to numbers or texts")
    texts = array.astype(object)  # NumPy's own texts are as long as the longest
    if others := [item for item in texts.flat if not isinstance(item, str | bytes)]:
        raise ValueError(
            f"{title} is an array of objects, among them {others[0]!r} "
            f"({type(others[0]).__name__}); convert it to numbers or texts; the columns of a table "
            "are dict(table)"
        )
    return texts


def named_parts(parts: Iterable[Any], *, batched: bool) -> dict[str, Any]:
    """Return `features`, `label` and `sample_weight` of one to three parts, as far as given.

    Three of which the last can be no weights, such as triples of images, are features alone.

    Args:
        parts: nests of what has a shape; None: it is not given.
        batched: whether their first dimension is the example.
    """
    parts = tuple(parts)
    if len(parts) == 3 and not any(part is None for part in parts):
        first, _, last = (tuple(x.shape) if hasattr(x, "shape") else () for x in parts)
        if last == first and len(last) - batched > 1:
            return {"features": parts}
    named = zip(("features", "label", "sample_weight"), parts, strict=False)
    return {name: part for name, part in named if part is not None}


def is_sequence(value: Any) -> bool:
    """Return whether a value is a `Sequence` or `PyDataset` of either Keras: batches by number."""
    return any(
        base.__name__ in ("Sequence", "PyDataset")
        and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in type(value).__mro__
    )


def makes_batches(value: Any) -> bool:
    """Return whether a value gives batches in Python: a generator, or a sequence of Keras."""
    return isinstance(value, Iterator) or is_sequence(value)


def one_pass(value: Any) -> Iterator[Any]:
    """Return the batches of a generator, or of a sequence in its order."""
    places = range(len(value)) if is_sequence(value) else None
    return _drawing(iter(value) if places is None else map(value.__getitem__, places), 0, 0)


def _drawing(batches: Iterator[Any], seed: int, first: int) -> Iterator[Any]:
    """Yield batches: their random numbers follow from a seed and their number.

    Those of Python and NumPy, also if others draw meanwhile.
    """
    for number in itertools.count(first):
        states = random.getstate(), np.random.get_state()
        random.seed(f"{seed} {number}")
        np.random.seed([seed, number % 2**32])
        try:
            batch = next(batches, _END)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
        if batch is _END:
            return
        yield batch


def passes(make: Callable[[], Any], seed: int) -> Iterator[Any]:
    """Yield batches without an end: a sequence's in an order of each pass, as Keras does.

    Args:
        make: returns a sequence, which lasts, or a generator, of which each pass has another.
    """
    value = make()
    number = 0
    while True:
        before = number
        if is_sequence(value):
            order = np.random.default_rng([seed, number]).permutation(len(value))
            batches = map(value.__getitem__, order.tolist())
        else:
            batches = iter(value)
        for batch in _drawing(batches, seed, number):
            number += 1
            yield batch
        if number == before:
            raise ValueError("a pass over the data has no batch; return a new generator each time")
        if is_sequence(value):
            value.on_epoch_end()
        else:
            value = make()
