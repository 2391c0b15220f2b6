"""The elements of a `tf.data.Dataset`: batches or examples, what is in one, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from trainer.datasets.splits.arrays import with_whole_labels
from trainer.datasets.splits.batches import named_parts
from trainer.datasets.splits.nested import in_words


def checked(examples: Any, split: str, batched: bool | None) -> bool:
    """Return whether the elements of a dataset are batches.

    Args:
        batched: set by the user; None: the specification decides.

    Raises:
        ValueError: it is no dataset, or its elements are others; names what they are.
    """
    if not isinstance(examples, tf.data.Dataset):
        raise ValueError(
            f"the function of {split} must return a tf.data.Dataset, not {type(examples).__name__}"
        )
    spec = examples.element_spec
    problem = _problem(spec)
    if not problem and batched is None:
        batched = is_batched(examples)
        problem = (
            ""
            if batched is not None
            else (
                "it may be a batch of numbers, or one example of no fixed length; add "
                "dataset.batched=true, or pad it in a map and add dataset.batched=false"
            )
        )
    if problem:
        raise ValueError(f"an element of {split} is {in_words(spec)}: {problem}")
    if batched:
        leads = [leaf.shape[:1].as_list() for leaf in tf.nest.flatten(spec)]
        if not all(leads):
            raise ValueError(
                f"an element of {split} is {in_words(spec)}: it is no batch, for a part of it has "
                "no dimension; leave dataset.batched=null"
            )
    return bool(batched)


def named(examples: tf.data.Dataset, *, batched: bool) -> tf.data.Dataset:
    """Return a dataset of dicts of `features`, `label` and `sample_weight`.

    Numbers are float32 where they are floating-point, and labels int64 where they are whole.
    """

    @tf.autograph.experimental.do_not_convert  # which would take most of the time of a start
    def by_name(*parts: Any) -> dict[str, Any]:
        return _example(parts, batched=batched)

    return examples.map(by_name)


def _problem(spec: Any) -> str:
    """Return why elements of this specification cannot be trained on, and what to do, or ''."""
    if isinstance(spec, tuple) and not 1 <= len(spec) <= 3:
        return (
            "it must be (features, label), (features, label, sample_weight), or the features; "
            "choose in a map, as by .map(lambda *parts: parts[:2])"
        )
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.RaggedTensorSpec):
            return "a part of it is ragged; make it dense in a map by .to_tensor()"
        if not isinstance(leaf, tf.TensorSpec):
            return "a part of it is no dense tensor; in a map, tf.sparse.to_dense() makes it dense"
        if leaf.shape.rank is None:
            return "the rank of a part is unknown; set it by tf.ensure_shape in a map"
    return ""


def _example(parts: tuple[Any, ...], *, batched: bool) -> dict[str, Any]:
    (first, *_) = parts
    names = set(first) if len(parts) == 1 and isinstance(first, Mapping) else set()
    is_named = {"features", "label"} <= names
    example = dict(first) if is_named else named_parts(parts, batched=batched)

    def narrowed(value: tf.Tensor) -> tf.Tensor:
        return tf.cast(value, tf.float32) if value.dtype.is_floating else value

    example = with_whole_labels(tf.nest.map_structure(narrowed, example))
    if "sample_weight" in example:
        weights = example["sample_weight"]
        example["sample_weight"] = tf.nest.map_structure(lambda x: _weight(x, batched), weights)
    return example


def _weight(weight: tf.Tensor, batched: bool) -> tf.Tensor:
    """Return sample weights as float32, without a last dimension that only is there."""
    is_column = weight.shape[int(batched) :].as_list() == [1]
    weight = tf.cast(weight, tf.float32)
    return tf.squeeze(weight, axis=-1) if is_column else weight


def is_batched(examples: tf.data.Dataset) -> bool | None:
    """Return whether the elements of a dataset are batches; None: unknown.

    They are if every part has one first dimension that is not fixed; or a fixed one, which is the
    size of a `.batch()` that made them.
    """
    leaves = tf.nest.flatten(examples.element_spec)
    leads = {leaf.shape[0] if leaf.shape.rank else 0 for leaf in leaves}
    lead = leads.pop()
    if leads or lead == 0:
        return False
    made_by = batching(examples)
    if lead is not None and (made_by is None or made_by.size != lead):
        return False
    if any(leaf.shape.rank > 1 or leaf.dtype == tf.string for leaf in leaves):
        return True
    return True if lead is None and made_by is not None else None


def may_be_batches(examples: tf.data.Dataset) -> bool:
    """Return whether the elements may be batches, as `model.fit` takes all to be."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(examples.element_spec)]
    return all(shape.rank for shape in shapes) and len({shape[0] for shape in shapes}) == 1


def num_examples(examples: tf.data.Dataset) -> int:
    """Return how many examples the batches of a dataset hold, or TensorFlow's number for unknown.

    Known if every step after `.batch()` keeps the batches and their sizes.
    """
    batches = int(examples.cardinality())
    made_by = batching(examples)
    if batches == tf.data.INFINITE_CARDINALITY:
        return batches
    sizes = {leaf.shape[0] for leaf in tf.nest.flatten(examples.element_spec)}
    sizes.discard(None)
    if batches >= 0 and sizes:
        return batches * sizes.pop()
    if batches < 0 or made_by is None:
        return int(tf.data.UNKNOWN_CARDINALITY)
    count = int(made_by.source.cardinality())
    is_kept = count >= 0 and -(-count // made_by.size) == batches
    if is_kept and made_by.is_mapped:
        first = tf.nest.flatten(next(iter(examples)))[0]
        is_kept = first.shape[0] == min(count, made_by.size)
    return count if is_kept else int(tf.data.UNKNOWN_CARDINALITY)


class Batching(NamedTuple):
    """The `.batch()` that made the elements of a dataset."""

    source: tf.data.Dataset
    size: int
    is_mapped: bool


def batching(examples: tf.data.Dataset) -> Batching | None:
    """Return the last `.batch()` of a chain of datasets; None: none is there, or seen.

    By TensorFlow's own classes, which only a change of TensorFlow changes: then none is seen.
    """
    is_mapped = False
    while True:
        name = type(examples).__name__.strip("_")
        inputs = examples._inputs()
        if name in ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset"):
            size = tf.get_static_value(examples._batch_size)
            return None if size is None else Batching(inputs[0], int(size), is_mapped)
        if len(inputs) != 1 or name in ("UnbatchDataset", "FlatMapDataset", "InterleaveDataset"):
            return None
        is_mapped = is_mapped or "Map" in name
        (examples,) = inputs


_WITH_STATE = ("Stateful", "Rng", "Assign")
"""How operations begin that draw from, or change, a variable."""


def check_order(dataset: tf.data.Dataset, split: str) -> None:
    """Check that parallel calls do not decide what an element is, or where it is.

    By TensorFlow's own classes, which only a change of TensorFlow changes: then nothing is seen.

    Raises:
        ValueError: a function that is called in parallel draws random numbers of an operation that
            has a state, or elements come in any order.
    """
    for stage in stages(dataset):
        name = type(stage).__name__.strip("_")
        if getattr(stage, "_deterministic", None) == "false":
            raise ValueError(
                f"the {name} of {split} has deterministic=False, so that no run could be repeated "
                "or continued; remove it"
            )
        if drawing := sorted(_drawing(stage, is_parallel=name.startswith("Parallel"))):
            raise ValueError(
                f"the function of a map of {split} draws random numbers ({drawing[0]}) in parallel "
                "calls: which element gets which is chance, so that no run could be repeated or "
                "continued; remove num_parallel_calls there, or draw with tf.random.stateless_*, "
                "whose seed is an element of tf.data.Dataset.random(seed=0)"
            )
    if dataset.options().deterministic is False:
        raise ValueError(
            f"the options of the dataset of {split} have deterministic=False, so that no run could "
            "be repeated or continued; remove it"
        )


def stages(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, and those that it is made of."""
    yield dataset
    for source in dataset._inputs():
        yield from stages(source)


def operations(function: Any) -> set[str]:
    """Return the operations of a function of a stage, and of those that it calls."""
    graph = function.function.graph.as_graph_def()
    bodies = (graph.node, *(inner.node_def for inner in graph.library.function))
    return {node.op for nodes in bodies for node in nodes}


def _drawing(stage: Any, *, is_parallel: bool) -> Iterator[str]:
    """Yield the operations with a state of random numbers that are called in parallel."""
    for called in map(operations, stage._functions()):
        if is_parallel or any(name.startswith("Parallel") for name in called):
            yield from filter(_draws, called)


def _draws(operation: str) -> bool:
    definition = op_def_registry.get(operation)
    if definition is None or not definition.is_stateful:
        return False
    has_seed = any(attribute.name == "seed" for attribute in definition.attr)
    return has_seed or operation.startswith(_WITH_STATE)
