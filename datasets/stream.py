"""Any `tf.data.Dataset` as a dataset: training examples come as a stream, test examples at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from trainer.datasets.arrays import ArrayDataset, ArraySplit


class StreamSplit:
    """A split that is read from its start, as often as needed.

    Attributes:
        num_examples: examples in one pass.
        in_memory: False, examples are read one after the other.
    """

    in_memory = False

    def __init__(self, make: Callable[[], tf.data.Dataset], num_examples: int) -> None:
        """Take a function that makes the dataset of one pass, and the length of a pass."""
        self.num_examples = num_examples
        self._make = make

    def stream(self) -> tf.data.Dataset:
        """Make the dataset anew, of examples `features` and `label`, without an end."""
        return named(self._make()).repeat()


def stream(
    *,
    train: Callable[[], Any],
    test: Callable[[], Any],
    num_classes: Annotated[int, ">= 1"],
    num_examples: Annotated[int | None, ">= 1"] = None,
) -> ArrayDataset:
    """Examples of any `tf.data.Dataset`, each a pair (features, label), or a dict of the two.

    Args:
        train: returns the training examples; called again whenever training is continued.
        test: returns the test examples, which are read into memory.
        num_classes: how many classes `label` counts.
        num_examples: training examples in one pass; null: the dataset knows.
    """
    examples = named(train())
    cardinality = int(examples.cardinality())
    if num_examples is None and cardinality < 1:
        reason = "has no end" if cardinality == tf.data.INFINITE_CARDINALITY else "does not know"
        raise ValueError(
            f"num_examples (null) must be set, for the dataset of train {reason}; "
            "add dataset.num_examples=<int>, the length of an epoch"
        )
    shape = examples.element_spec["features"].shape
    if not shape.is_fully_defined():
        raise ValueError(f"features of train are {shape}; their shape must be static")
    return ArrayDataset(
        train=StreamSplit(train, num_examples or cardinality),
        test=_read(named(test())),
        input_shape=tuple(shape),
        num_classes=num_classes,
    )


def named(examples: Any) -> tf.data.Dataset:
    """Return a dataset whose elements are dicts of `features` and `label`.

    Raises:
        ValueError: it is no such dataset.
    """
    if not isinstance(examples, tf.data.Dataset):
        raise ValueError(f"a function must return a tf.data.Dataset, not {type(examples).__name__}")
    spec = examples.element_spec
    if isinstance(spec, tuple) and len(spec) == 2:
        return examples.map(lambda features, label: {"features": features, "label": label})
    if isinstance(spec, dict) and {"features", "label"} <= spec.keys():
        return examples
    raise ValueError(f"an example must be (features, label), not {spec}")


def _read(examples: tf.data.Dataset) -> ArraySplit:
    """Read a dataset to its end.

    Raises:
        ValueError: it has no end, or no example.
    """
    if int(examples.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the dataset of test has no end; leave out repeat()")
    rows = list(examples.as_numpy_iterator())
    if not rows:
        raise ValueError("the dataset of test is empty")
    return ArraySplit(
        np.stack([row["features"] for row in rows]), np.array([row["label"] for row in rows])
    )
