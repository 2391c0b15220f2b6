"""Examples whose features and labels are nests of arrays, and what their labels are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from trainer.datasets.splits.arrays import NestSplit
from trainer.protocols import paths

Kind = Literal["auto", "class", "number", "multilabel"] | None
"""The declared kind of labels; auto: seen by their type and shape; None: also, and whole numbers
are anything, so that none is read to count classes."""


@dataclass(frozen=True, kw_only=True)
class NestDataset:
    """Examples as they are: no augmentation, and nothing is changed but the width of numbers.

    Attributes:
        feature_specs: a nest of tf.TensorSpec of one example's features.
        num_classes: how many classes, targets or flags the label has; 1 where that has no meaning.
        weighted: whether training examples have `sample_weight`.
    """

    train: Any
    test: NestSplit
    feature_specs: Any
    num_classes: int
    label_kind: str | None
    validation: NestSplit | None = None
    class_names: Sequence[str] | None = None
    weighted: bool = False
    num_draws: int = 0

    @property
    def input_shape(self) -> Any:
        """The shape of one example's features, or the nest of the shapes."""
        return tf.nest.map_structure(lambda spec: tuple(spec.shape), self.feature_specs)

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        return batch

    def digest(self) -> str:
        """Return a digest of the training examples: every process and attempt must have them."""
        digest: str = self.train.digest()
        return digest


def specs_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of one example of arrays [N, ...], as `fetch` returns it."""

    def spec(array: np.ndarray, *, is_label: bool = False) -> tf.TensorSpec:
        is_whole = is_label and array.dtype.kind in "iub"
        return tf.TensorSpec(array.shape[1:], tf.int64 if is_whole else tf.as_dtype(array.dtype))

    return {
        name: tf.nest.map_structure(partial(spec, is_label=name == "label"), nest)
        for name, nest in batch.items()
    }


def cast_alike(batch: Mapping[str, Any], own: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return arrays of a split in the types of the examples that are trained on.

    Raises:
        ValueError: features or labels are others.
    """
    others = specs_of(batch)
    for name in ("features", "label"):
        if not _is_alike(others.get(name), own.get(name)):
            raise ValueError(
                f"the {name} of {split} must be as of train, {in_words(own.get(name))}, and not "
                f"{in_words(others.get(name))}"
            )

    def cast(array: np.ndarray, spec: tf.TensorSpec) -> np.ndarray:
        return array.astype(np.float32, copy=False) if spec.dtype == tf.float32 else array

    names = [name for name in ("features", "label") if name in batch]
    alike = {name: tf.nest.map_structure(cast, batch[name], own[name]) for name in names}
    return {**batch, **alike}


def _is_alike(other: Any, own: Any) -> bool:
    """Return whether structures and shapes are the same, and numbers need but be widened."""
    if other is None or own is None:
        return other is own
    return paths(own) == paths(other) and all(
        one.shape.is_compatible_with(two.shape)
        and (one.dtype == two.dtype or (one.dtype == tf.float32 and two.dtype.is_integer))
        for one, two in zip(tf.nest.flatten(own), tf.nest.flatten(other), strict=True)
    )


def in_words(spec: Any) -> str:
    """Return the specification of an element in one line, such as (float32[8,8,1], int64[])."""
    if spec is None:
        return "missing"
    if isinstance(spec, dict):
        return f"{{{', '.join(f'{name}: {in_words(part)}' for name, part in spec.items())}}}"
    if isinstance(spec, tuple):
        return f"({', '.join(map(in_words, spec))})"
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        sides = ",".join("?" if side is None else str(side) for side in spec.shape)
        return f"{spec.dtype.name}[{sides}]"
    return " ".join(str(spec).split())


class LabelRule:
    """What the labels of a dataset are, and how many classes, targets or flags they have.

    Args:
        spec: of one example's label, a nest of tf.TensorSpec, or None.
        wanted: the kind that is configured.

    Raises:
        ValueError: the labels are not of the configured kind.
    """

    def __init__(
        self,
        spec: Any,
        wanted: Kind,
        num_classes: int | None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self._spec = spec if isinstance(spec, tf.TensorSpec) else None
        is_whole = self._spec is not None and (spec.dtype.is_integer or spec.dtype.is_bool)
        self._is_whole = is_whole
        self._num_classes = num_classes or (len(class_names) if class_names else None)
        self._is_auto = wanted in ("auto", None)
        self.kind: str | None = self._seen() if self._is_auto else wanted
        self._reads = wanted is not None or self._num_classes is not None
        if is_whole and not self._reads:
            self.kind = None
        if wanted and wanted != "auto" and (problem := self._problem(wanted)):
            raise ValueError(problem)

    @property
    def is_column(self) -> bool:
        """Whether the label is the number of a class in a vector of length 1."""
        return self.kind == "class" and self._is_whole and self._spec.shape.as_list() == [1]

    @property
    def needs_range(self) -> bool:
        """Whether the labels must be read to count their classes."""
        is_counted = self._num_classes is None and self._is_whole
        return is_counted and self.kind != "multilabel" and self._reads

    def count(self, least: int, largest: int) -> int:
        """Return how many classes, targets or flags there are.

        Raises:
            ValueError: a class is not among them.
        """
        if self._is_auto and least < 0 and self.kind == "class":
            self.kind = None
        if self._spec is None:
            return self._num_classes or 1
        size = math.prod(side or 1 for side in self._spec.shape)
        if not self._is_whole or self.kind in ("number", "multilabel"):
            return self._num_classes or (size if self._spec.shape.rank == 1 else 1)
        if self.kind is None and self._spec.shape.rank == 1 and size > 1 and largest <= 1:
            return self._num_classes or size  # flags
        count = self._num_classes or (largest + 1 if least >= 0 else 1)
        if self.kind == "class" and not 0 <= least <= largest < count:
            raise ValueError(
                f"labels go from {least} to {largest}, they must be in 0..{count - 1} "
                "(dataset.label_kind=class); change them, or dataset.num_classes"
            )
        return count

    def _seen(self) -> str | None:
        """Return the kind that labels of this type and shape surely are."""
        if self._spec is None:
            return None
        if self._spec.dtype.is_floating and self._spec.shape.rank <= 1:
            return "number"
        return "class" if self._is_whole and self._spec.shape.rank == 0 else None

    def _problem(self, kind: Kind) -> str:
        if self._spec is None:
            return (
                "there is not one label; leave dataset.label_kind=auto, or return the label as a "
                "single array"
            )
        size = self._num_classes
        shape = self._spec.shape.as_list()
        is_number = self._is_whole or self._spec.dtype.is_floating
        is_vector = len(shape) == 1 and size in (None, shape[0])
        if kind == "number":
            expected = f"a number, or {size or 'a vector'} of them"
            fits = is_number and (not shape or is_vector)
        elif kind == "multilabel":
            expected, fits = f"{size or 'a vector of'} integers", self._is_whole and is_vector
        else:
            expected = f"an integer, or float32[{size or '?'}], the fraction of each class"
            is_share = self._spec.dtype == tf.float32 and is_vector
            fits = is_share or (self._is_whole and (len(shape) != 1 or shape == [1]))
        if fits:
            return ""
        return (
            f"the label must be {expected} (dataset.label_kind={kind}); cast it or reshape it, or "
            "set dataset.label_kind=auto"
        )


def range_of(batches: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the least and the largest label of whole numbers; (0, 0) where there are none."""
    arrays = [
        label
        for batch in batches
        if isinstance(label := batch.get("label"), np.ndarray) and label.dtype.kind in "iub"
    ]
    filled = [array for array in arrays if array.size]
    if not filled:
        return 0, 0
    return min(int(array.min()) for array in filled), max(int(array.max()) for array in filled)


@contextmanager
def seeded() -> Iterator[None]:
    """Have what a function draws without a seed be the same whenever it is called.

    So every process reads the same examples. Afterward all is as before.
    """
    states = random.getstate(), np.random.get_state(), context.global_seed()
    tf.keras.utils.set_random_seed(0)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        tf.random.set_seed(states[2])
