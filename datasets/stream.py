"""Any `tf.data.Dataset` as a dataset: training examples are a stream, test examples an array."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge, Structural
from trainer.datasets.splits.arrays import NestSplit, digest_of
from trainer.datasets.splits.batches import joined
from trainer.datasets.splits.elements import check_order, checked, named, num_examples
from trainer.datasets.splits.nested import (
    LabelRule,
    NestDataset,
    cast_alike,
    in_words,
    range_of,
    seeded,
)
from trainer.protocols import DatasetDefaults, with_defaults

_log = logging.getLogger(__name__)

_FIRST, _FIRST_BATCHES = 16, 3
"""Examples, or batches, that are read to see shapes, and whether the stream is as before."""

_READ_AT_ONCE = 256


class StreamSplit:
    """A split that is read from its start, as often as needed.

    Attributes:
        batches: see `SplitDefaults`; None: it comes in single examples.
    """

    in_memory = False

    def __init__(self, source: _Source, num_examples: int) -> None:
        self.num_examples = num_examples
        self._source = source
        self.batches = source.batches if source.batched else None

    def stream(self) -> tf.data.Dataset:
        """Make the dataset again, of examples `features` and `label`, without an end."""
        return self._source.examples().repeat()

    def digest(self) -> str:
        """Return a text of length and first examples; a ValueError if they do not repeat."""
        first = self._source.first
        with seeded():
            again = list(self._source.elements().take(len(first)).as_numpy_iterator())
        digests = {
            digest_of(dict(enumerate(map(_as_arrays, nests))), self.num_examples)
            for nests in (first, again)
        }
        if len(digests) > 1:
            raise ValueError(
                "the function of train makes other examples each time, so that a run could not be "
                "continued; give its random numbers a seed"
            )
        return digests.pop()


def stream(
    *,
    train: Callable[[], Any],
    test: Callable[[], Any] | None = None,
    validation_data: Callable[[], Any] | None = None,
    num_classes: Annotated[int | None, Ge(1), Structural()] = None,
    num_examples: Annotated[int | None, Ge(1)] = None,
    label_kind: Literal["auto", "class", "number", "multilabel"] | None = "auto",
    batched: bool | None = None,
) -> NestDataset:
    """Examples of any `tf.data.Dataset`: (x, y), (x, y, sample_weight) or x, single or in batches.

    Raises:
        ValueError: a dataset cannot be trained on, or has no length.
    """
    source = _Source(train, batched)
    size = num_examples or source.num_examples()
    with source.naming():
        rule = LabelRule(source.spec.get("label"), label_kind, num_classes, source.class_names)
    source.is_column = rule.is_column
    evaluated = {
        name: _read(_Source(make, batched, name), source)
        for name, make in (("test", test), ("validation_data", validation_data))
        if make is not None
    }
    with source.naming():
        count = rule.count(*source.label_range(size if rule.needs_range else 0, evaluated))
    return NestDataset(
        train=StreamSplit(source, size),
        test=NestSplit(evaluated.get("test", source.nothing())),
        validation=NestSplit(evaluated["validation_data"]) if validation_data else None,
        feature_specs=source.spec["features"],
        num_classes=count,
        class_names=source.class_names,
        label_kind=rule.kind,
        weighted="sample_weight" in source.spec,
    )


class _Source:
    """A user's function that makes a dataset, and its facts.

    Attributes:
        raw_spec: the specification of an element as the function makes it.
        spec: of an example by name, of static shapes.
        is_column: whether `examples` makes a number of the label, a vector of length 1.

    Args:
        batched: whether its elements are batches; None: it must be seen.

    Raises:
        ValueError: the elements are no examples.
    """

    def __init__(self, make: Callable[[], Any], batched: bool | None, split: str = "train") -> None:
        self._make = make
        self._split = split
        self.is_column = False
        with seeded():
            self._raw = make()
            self.batched = checked(self._raw, split, batched)
            elements = named(self._raw, batched=self.batched)
            check_order(self._raw, split)
            first = elements.take(_FIRST_BATCHES if self.batched else _FIRST)
            self.first = list(first.as_numpy_iterator())
        self.raw_spec = self._raw.element_spec
        self.class_names: Sequence[str] | None = with_defaults(
            self._raw, DatasetDefaults
        ).class_names
        if not self.first:
            raise ValueError(f"the dataset of {split} is empty")
        self.spec = tf.nest.map_structure(self._static, elements.element_spec, *self.first)

    def _static(self, spec: tf.TensorSpec, *values: Any) -> tf.TensorSpec:
        """Return the specification of an example: a side is fixed if it is the same in the first.

        A batch may be padded to its own length.
        """
        shapes = {np.shape(value)[self.batched :] for value in values}
        if len(shapes) == 1:
            return tf.TensorSpec(shapes.pop(), spec.dtype)
        if self.batched and spec.shape.rank is not None:
            sides = (set(sides) for sides in zip(*shapes, strict=True))
            return tf.TensorSpec([x.pop() if len(x) == 1 else None for x in sides], spec.dtype)
        raise ValueError(
            f"an element of {self._split} is {in_words(self.raw_spec)}, and its examples are "
            f"of several shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}: the "
            "shape must be one; pad, crop or resize them in a map"
        )

    def elements(self) -> tf.data.Dataset:
        """Make the dataset again: of examples, or of batches as they are made."""
        return self._named(self._make(), batched=self.batched)

    def examples(self) -> tf.data.Dataset:
        elements = self._make()
        return self._named(elements.unbatch() if self.batched else elements, batched=False)

    def batches(self, size: int) -> tf.data.Dataset:
        """Make a dataset of batches of so many examples, without an end.

        Those of the size that the user has made are not taken apart.
        """
        batches = self._make().repeat().rebatch(size, drop_remainder=True)
        return self._named(batches, batched=True)

    def _named(self, elements: tf.data.Dataset, *, batched: bool) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert
        def shaped(example: Any) -> Any:
            example = tf.nest.map_structure(
                lambda value, spec: tf.ensure_shape(value, [*value.shape[:batched], *spec.shape]),
                example,
                self.spec,
            )
            if self.is_column:
                example["label"] = tf.squeeze(example["label"], int(batched))
            return example

        examples = named(elements, batched=batched)
        is_same = not batched and examples.element_spec == self.spec and not self.is_column
        return examples if is_same else examples.map(shaped)

    def num_examples(self) -> int:
        """Return how many examples one pass has, or raise a ValueError if that is unknown."""
        size = num_examples(self._raw) if self.batched else int(self._raw.cardinality())
        if size < 1:
            reason = "has no end" if size == tf.data.INFINITE_CARDINALITY else "does not declare"
            raise ValueError(
                f"num_examples (null) must be set, for the dataset of {self._split} {reason}; "
                "add dataset.num_examples=<int>, the length of an epoch"
            )
        return size

    def label_range(self, size: int, others: Mapping[str, Any]) -> tuple[int, int]:
        """Return the least and largest label of `size` examples, which are read, and of others."""
        ranges = [range_of(list(others.values()))]
        if size:
            _log.info(
                "Reading the stream once to count the classes; set dataset.num_classes to avoid it."
            )
            with seeded():
                ranges += [range_of([block]) for block in self.blocks(size)]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def blocks(self, size: int | None = None) -> Iterator[dict[str, Any]]:
        """Read the dataset, or `size` examples in whole batches: nests of arrays [N, ...]."""
        elements = self.elements()
        if not self.batched:
            elements = elements.take(-1 if size is None else size).batch(_READ_AT_ONCE)
        count = 0
        for block in elements.as_numpy_iterator():
            yield block
            count += len(tf.nest.flatten(block)[0])
            if size is not None and count >= size:
                return

    def nothing(self) -> dict[str, Any]:
        """Return no examples: nests of arrays [0, ...]."""

        def empty(spec: tf.TensorSpec) -> np.ndarray:
            sides = [side or 0 for side in spec.shape]
            return np.zeros([0, *sides], spec.dtype.as_numpy_dtype)

        nothing: dict[str, Any] = tf.nest.map_structure(empty, self.spec)
        return nothing

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Raise a ValueError that describes an element."""
        try:
            yield
        except ValueError as error:
            element = f"an element of {self._split} is {in_words(self.raw_spec)}"
            raise ValueError(f"{element}: {error}") from error


def _read(source: _Source, train: _Source) -> dict[str, Any]:
    """Read a dataset to its end; return nests of arrays [N, ...]."""
    split = source._split
    if int(source._raw.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(f"the dataset of {split} has no end; leave out repeat()")
    source.is_column = train.is_column
    spec = train.spec
    if train.is_column:
        spec = {**spec, "label": tf.TensorSpec([], tf.int64)}
    with seeded():
        try:
            blocks = list(source.blocks())
        except tf.errors.InvalidArgumentError as error:
            if "hape" not in str(error):
                raise
            raise ValueError(
                f"the examples of {split} are of several shapes; pad, crop or resize them in a map"
            ) from error
    read = tf.nest.map_structure(lambda *parts: joined(parts), *blocks)
    return cast_alike(read, spec, split)


def _as_arrays(example: Any) -> Any:
    return tf.nest.map_structure(
        lambda value: np.asarray(value, object if isinstance(value, bytes) else None), example
    )
