"""Any `tf.data.Dataset` as a dataset: training examples come as a stream, test examples at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge, Structural
from trainer.datasets.splits.arrays import ArrayDataset, ArraySplit


class StreamSplit:
    """A split that is read from its start, as often as needed.

    Attributes:
        num_examples: examples in one pass.
        in_memory: False, examples are read one after the other.
    """

    in_memory = False

    def __init__(self, make: Callable[[], tf.data.Dataset], num_examples: int) -> None:
        """Take a function that makes the named dataset of one pass, and the length of a pass."""
        self.num_examples = num_examples
        self._make = make

    def stream(self) -> tf.data.Dataset:
        """Make the dataset anew, of examples `features` and `label`, without an end."""
        return self._make().repeat()


def stream(
    *,
    train: Callable[[], Any],
    test: Callable[[], Any],
    num_classes: Annotated[int, Ge(1), Structural()],
    num_examples: Annotated[int | None, Ge(1)] = None,
    label_kind: Literal["class", "number", "multilabel"] = "class",
) -> ArrayDataset:
    """Examples of any `tf.data.Dataset`, each a pair (features, label), or a dict of the two.

    Args:
        train: returns the training examples; called again whenever training is continued.
        test: returns the test examples, which are read into memory.
        num_classes: how many classes `label` counts; or how many targets or flags it has.
        num_examples: training examples in one pass; null: the dataset knows.
        label_kind: class: the number of a class, or the float32 share of each; number: targets to
            predict; multilabel: flags of 0 and 1.
    """
    kind = label_kind, num_classes
    examples = named(train(), "train", *kind)
    cardinality = int(examples.cardinality())
    if num_examples is None and cardinality < 1:
        reason = "has no end" if cardinality == tf.data.INFINITE_CARDINALITY else "does not know"
        raise ValueError(
            f"num_examples (null) must be set, for the dataset of train {reason}; "
            "add dataset.num_examples=<int>, the length of an epoch"
        )
    return ArrayDataset(
        train=StreamSplit(lambda: named(train(), "train", *kind), num_examples or cardinality),
        test=_read(named(test(), "test", *kind)),
        input_shape=tuple(examples.element_spec["features"].shape),
        num_classes=num_classes,
        label_kind=label_kind,
    )


def named(examples: Any, split: str, label_kind: str, num_classes: int) -> tf.data.Dataset:
    """Return a dataset whose elements are dicts of `features` and `label`.

    Raises:
        ValueError: its elements are others; names what they are.
    """
    if not isinstance(examples, tf.data.Dataset):
        raise ValueError(
            f"the function of {split} must return a tf.data.Dataset, not {type(examples).__name__}"
        )
    spec = examples.element_spec
    is_dict = isinstance(spec, dict) and {"features", "label"} <= spec.keys()
    pair = (spec["features"], spec["label"]) if is_dict else spec
    if problem := _problem(pair, label_kind, num_classes):
        raise ValueError(f"an element of {split} is {_in_words(spec)}: {problem}")
    if is_dict:
        return examples
    return examples.map(lambda features, label: {"features": features, "label": label})


def _problem(pair: Any, label_kind: str, num_classes: int) -> str:
    """Return why elements of this specification cannot be trained on, and what to do, or ''."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        return (
            "it must be (features, label), and more, such as weights, is not read; choose both in "
            "a map: .map(lambda x, y, w: (x, y)), or .map(lambda x: (x, 0)) if no label is read"
        )
    features, label = pair
    if not isinstance(features, tf.TensorSpec):
        return (
            "the features must be one dense tensor; join them in a map, as by "
            "tf.stack(list(x.values()), -1), or use dataset=table for columns"
        )
    if not isinstance(label, tf.TensorSpec):
        return "the label must be one tensor; choose it, as by .map(lambda x, y: (x, y[0]))"
    expected, fits = _label_rule(label, label_kind, num_classes)
    if fits and features.shape.is_fully_defined():
        return ""
    begins_alike = features.shape.rank and features.shape[:1] == label.shape[:1]
    if begins_alike and (features.shape[0] is None or features.shape != label.shape):
        return (
            "it is a batch, and batches are made by batch.global_size; leave .batch() out, or add "
            ".unbatch()"
        )
    if not fits:
        return (
            f"the label must be {expected} (dataset.label_kind={label_kind}); cast it or "
            "reshape it, or set dataset.label_kind"
        )
    return "the shape of the features must be static; pad, crop or resize them in a map"


def _label_rule(label: tf.TensorSpec, kind: str, size: int) -> tuple[str, bool]:
    """Return in words what a label of a kind is, and whether this one is such a label."""
    shape = label.shape.as_list() if label.shape.rank is not None else None
    if kind == "multilabel":
        return f"{size} integers", label.dtype.is_integer and shape == [size]
    if kind == "number":
        is_number = label.dtype.is_floating or label.dtype.is_integer
        return f"a number, or {size} of them", is_number and shape in ([], [size])
    is_class = label.dtype.is_integer and shape == []
    is_share = label.dtype == tf.float32 and shape == [size]
    return f"an integer, or float32[{size}], the share of each class", is_class or is_share


def _in_words(spec: Any) -> str:
    """Return the specification of an element in one line, such as (float32[8,8,1], int64[])."""
    if isinstance(spec, dict):
        return f"{{{', '.join(f'{name}: {_in_words(part)}' for name, part in spec.items())}}}"
    if isinstance(spec, tuple):
        return f"({', '.join(map(_in_words, spec))})"
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        sides = ",".join("?" if side is None else str(side) for side in spec.shape)
        return f"{spec.dtype.name}[{sides}]"
    return " ".join(str(spec).split())


def _read(examples: tf.data.Dataset) -> ArraySplit:
    """Read a dataset to its end."""
    if int(examples.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the dataset of test has no end; leave out repeat()")
    rows = list(examples.as_numpy_iterator())
    if not rows:
        raise ValueError("the dataset of test is empty")
    return ArraySplit(
        np.stack([row["features"] for row in rows]), np.array([row["label"] for row in rows])
    )
