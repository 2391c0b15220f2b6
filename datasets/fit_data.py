"""What `fit` of a script or notebook was given: arrays, a `tf.data.Dataset`, or other batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Exists, Ge, Structural
from trainer.datasets.arrays import arrays, part_of
from trainer.datasets.splits.batches import (
    Column,
    PaddedRows,
    joined,
    makes_batches,
    one_pass,
    passes,
)
from trainer.datasets.splits.elements import is_batched, may_be_batches
from trainer.datasets.splits.nested import NestDataset, seeded
from trainer.datasets.stream import stream

_PEEKED = 3
"""Batches from whose shapes the specification of all is made."""


def data_of_fit(
    *,
    data: Callable[[], Any],
    held_out: Callable[[], Any] | None = None,
    num_classes: Annotated[int | None, Ge(1), Structural()] = None,
    label_kind: Literal["auto", "class", "number", "multilabel"] | None = "auto",
    unit: Annotated[int, Ge(0)] = 1,
    num_examples: Annotated[int | None, Ge(1)] = None,
    batched: bool | None = None,
) -> NestDataset:
    """Examples of functions, whichever kind they return.

    Args:
        data: returns training examples: arrays, a tf.data.Dataset, a generator, or a sequence of
            Keras.
        held_out: returns the examples that are evaluated, of any kind, or null.
        label_kind: as for `dataset=arrays`; null: auto, but a stream is not read to count classes.
        num_examples: training examples in one pass of what is no array; null: its own length.

    Raises:
        ValueError: what a function returns cannot be trained on.
    """
    kinds: Any = {"num_classes": num_classes, "label_kind": label_kind}
    with seeded():
        examples = data()
        evaluated = held_out and held_out()
    if not isinstance(examples, tf.data.Dataset) and not makes_batches(examples):
        value = examples
        if held_out:
            value = (_tuple(examples), _tuple(_read(evaluated)))
        return arrays(data=lambda: value, unit=unit, **kinds)
    if makes_batches(examples):
        spec, batched = _spec(map(_parts, itertools.islice(one_pass(examples), _PEEKED))), True

        def make() -> tf.data.Dataset:
            seed = int(np.random.randint(2**31))
            return _stream_of(lambda: map(_parts, passes(data, seed)), spec)
    else:
        if batched is None and is_batched(examples) is None:
            batched = True  # numbers, in batches as Keras takes them
        first = [examples]  # what was made to be looked at is used first

        def make() -> tf.data.Dataset:
            return first.pop() if first else data()

    test = _dataset(evaluated, batched) if held_out else None
    evaluation = held_out and (lambda: test)
    return stream(train=make, test=evaluation, num_examples=num_examples, batched=batched, **kinds)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _parts(batch: Any) -> tuple[Any, ...]:
    """Return features, label and sample weight of a batch, nests of arrays."""
    return tuple(part_of(batch, "train").values())


def _stream_of(batches: Callable[[], Iterable[Any]], spec: Any) -> tf.data.Dataset:
    def copied() -> Iterator[Any]:
        for batch in batches():
            # TensorFlow shares the memory of arrays, and may write results to it.
            yield tf.nest.map_structure(np.copy, batch)

    return tf.data.Dataset.from_generator(copied, output_signature=spec)


def _spec(batches: Iterable[Any]) -> tuple[Any, ...]:
    """Return the specification of batches; a side is fixed if all have it in common."""
    first = list(batches)
    if not first:
        raise ValueError("data: it has no batch; a function must return a new generator")

    def spec(*values: np.ndarray) -> tf.TensorSpec:
        inner = zip(*(value.shape[1:] for value in values), strict=True)
        sides = [sides[0] if len(set(sides)) == 1 else None for sides in inner]
        dtype = tf.string if values[0].dtype == object else tf.as_dtype(values[0].dtype)
        return tf.TensorSpec([None, *sides], dtype)

    specs: tuple[Any, ...] = tf.nest.map_structure(spec, *first)
    return specs


def _read(value: Any) -> Any:
    if isinstance(value, tf.data.Dataset):
        value = value.as_numpy_iterator()
    if not makes_batches(value):
        return value
    batches = list(map(_parts, one_pass(value)))
    return tf.nest.map_structure(lambda *columns: joined(columns), *batches)


def _dataset(value: Any, batched: bool | None) -> tf.data.Dataset:
    """Return examples of any kind as a tf.data.Dataset, of batches if the others are."""
    if not isinstance(value, tf.data.Dataset):
        batches = list(map(_parts, one_pass(value))) if makes_batches(value) else [_parts(value)]
        value = _stream_of(lambda: batches, _spec(batches))
        return value if batched else value.unbatch()
    if batched is None or may_be_batches(value) == batched:
        return value
    return value.batch(256) if batched else value.unbatch()


def kept_arrays(*, path: Annotated[str, Exists("directory")]) -> tuple[Any, ...]:
    """Return (x, y), (x, y, sample_weight) or (x,), as they are kept in a folder."""
    folder = Path(path)
    kept = json.loads((folder / "structure.json").read_text(encoding="utf-8"))
    with np.load(folder / "arrays.npz", allow_pickle=False) as archive:
        stored = {name: archive[name] for name in archive.files}

    def column(number: int) -> Column:
        name = str(number)
        values = stored[name]
        if (kind := kept["kinds"][number]) != "numbers":
            values = _texts(values.tobytes(), stored[f"{name}.ends"], kind == "str")
            values = values.reshape(stored[f"{name}.shape"])
        sizes = stored.get(f"{name}.sizes")
        return values if sizes is None else PaddedRows(values, sizes)

    def nest(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: nest(item) for key, item in value.items()}
        if isinstance(value, list):
            return [nest(item) for item in value]
        return None if value is None else column(value)

    return tuple(map(nest, kept["structure"]))


def _texts(content: bytes, ends: np.ndarray, is_str: bool) -> np.ndarray:
    """Return texts, an array of objects, of their bytes one after the other."""
    texts = np.empty(len(ends), object)
    parts = (content[begin:end] for begin, end in itertools.pairwise([0, *ends.tolist()]))
    texts[:] = [part.decode() if is_str else part for part in parts]
    return texts
