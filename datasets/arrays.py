"""Arrays in memory, as `model.fit` takes them: a function of the user's own returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge, Structural
from trainer.datasets.splits.arrays import NestSplit
from trainer.datasets.splits.batches import Column, as_column, map_arrays, named_parts
from trainer.datasets.splits.nested import (
    LabelRule,
    NestDataset,
    cast_alike,
    range_of,
    seeded,
    specs_of,
)
from trainer.protocols import paths

_FORMS = "(x, y), (x, y, sample_weight), x, or a tuple of such tuples: (train, test)"
_PARTS = {1: ("train",), 2: ("train", "test"), 3: ("train", "validation", "test")}
_TITLES = {"features": "x", "label": "y", "sample_weight": "sample_weight"}


def arrays(
    *,
    data: Callable[[], Any],
    num_classes: Annotated[int | None, Ge(1), Structural()] = None,
    label_kind: Literal["auto", "class", "number", "multilabel"] = "auto",
    unit: Annotated[int, Ge(0)] = 1,
) -> NestDataset:
    """Arrays in memory: NumPy, lists, tensors or columns, dicts of them, also nested; and texts.

    The function returns (x, y), (x, y, sample_weight) or x, or a tuple of such tuples: (train,
    test), or (train, validation, test). A dict, a tuple, or a list of arrays is several inputs or
    outputs. Floating-point numbers become float32, other types stay.

    Raises:
        ValueError: what the function returns cannot be trained on.
    """
    with seeded():
        batches = _batches(data())
    train = batches["train"]
    specs = specs_of(train)
    try:
        batches = {name: cast_alike(batch, specs, name) for name, batch in batches.items()}
        rule = LabelRule(specs.get("label"), label_kind, num_classes)
        count = rule.count(*range_of(list(batches.values())))
    except ValueError as error:
        raise ValueError(f"data: {error}") from error
    if rule.is_column:
        for batch in batches.values():
            batch["label"] = batch["label"][:, 0]
    nothing = tf.nest.map_structure(lambda array: array[:0], train)
    return NestDataset(
        train=NestSplit(train, unit),
        test=NestSplit(batches.get("test", nothing)),
        validation=NestSplit(batches["validation"]) if "validation" in batches else None,
        feature_specs=specs["features"],
        num_classes=count,
        label_kind=rule.kind,
        weighted="sample_weight" in train,
    )


def _batches(value: Any) -> dict[str, dict[str, Any]]:
    """Return the splits by name, each `features`, `label` and `sample_weight` as far as given."""
    is_several = isinstance(value, tuple) and all(isinstance(part, tuple) for part in value)
    parts = list(value) if is_several and len(value) in (2, 3) else [value]
    names = _PARTS[len(parts)]
    batches = {name: part_of(part, name) for name, part in zip(names, parts, strict=True)}
    return batches


def part_of(part: Any, split: str) -> dict[str, Any]:
    """Return `features`, `label` and `sample_weight` of a tuple, or of x: nests of arrays."""
    values = part if isinstance(part, tuple) else (part,)
    if not 1 <= len(values) <= 3 or values[0] is None:
        shown = "None" if len(values) == 1 else f"a tuple of {len(values)}"
        raise ValueError(
            f"data: the {split} part is {shown}; the function returns {_FORMS}; several inputs "
            "are a dict or a list"
        )
    nests = (
        value if value is None else map_arrays(_array, value, f"data: {title} of the {split} part")
        for title, value in zip(_TITLES.values(), values, strict=False)
    )
    batch = named_parts(nests, batched=True)
    titled = {_TITLES[name]: nest for name, nest in batch.items()}
    leaves = zip(paths(titled), tf.nest.flatten(titled), strict=True)
    sizes = {title: len(array) for title, array in leaves}
    if len(set(sizes.values())) != 1:
        listed = ", ".join(f"{title} {size}" for title, size in sizes.items())
        raise ValueError(
            f"data: the arrays of the {split} part must have one length, they have {listed}; "
            "several inputs are a dict or a list, several parts tuples"
        )
    if 0 in sizes.values():
        raise ValueError(f"data: the {split} part has no example; leave it out")
    if "sample_weight" in batch:
        weights = tf.nest.map_structure(lambda x: _weight(x, split), batch["sample_weight"])
        batch["sample_weight"] = weights
    return batch


def _weight(weight: Any, split: str) -> np.ndarray:
    """Return sample weights as float32, [N] or [N, ...]: of positions, or pixels."""
    if not isinstance(weight, np.ndarray) or weight.dtype.kind not in "fiub":
        raise ValueError(f"data: sample_weight of the {split} part must be numbers")
    if not np.isfinite(weight).all():
        raise ValueError(f"data: sample_weight of the {split} part has numbers that are not finite")
    weight = weight[:, 0] if weight.shape[1:] == (1,) else weight
    return weight.astype(np.float32)


def _array(value: Any, title: str) -> Column:
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        way = ".to_tensor()" if isinstance(value, tf.RaggedTensor) else "tf.sparse.to_dense()"
        raise ValueError(f"{title} is a {type(value).__name__}; make it dense by {way}")
    way_out = "use dataset=stream for a tf.data.Dataset, dataset=indexed for objects with an index"
    return as_column(value, title, way_out)
