"""What a model is called with: the specification of a batch, and of its features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from trainer.config.options.targets import MODEL_ARGUMENTS
from trainer.protocols import Batch, Dataset, DatasetDefaults, Split, Stream, paths, with_defaults


def feature_specs(dataset: Dataset) -> Any:
    """Return the features of a batch as the model receives them: a nest of `tf.TensorSpec`.

    The first dimension of each is the batch, None. Without `feature_specs` a dataset has
    one tensor: int32 of tokens, else float32.
    """
    members = with_defaults(dataset, DatasetDefaults)
    if members.feature_specs is None:
        dtype = tf.float32 if members.vocabulary_size is None else tf.int32
        return tf.TensorSpec([None, *dataset.input_shape], dtype, "features")
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name),
        members.feature_specs,
    )


def batch_specs(
    dataset: Dataset, size: int, split: Split | Stream | None = None
) -> Mapping[str, Any]:
    """Return what a batch of a split (None: training) holds as the task gets it; reads nothing."""

    def received(batch: Batch) -> Batch:
        whole = {"weight": tf.ones([size]), "id": tf.range(size, dtype=tf.int64), **batch}
        return {**whole, **dataset.transform(whole, None)}

    fetched = fetched_specs(dataset.train if split is None else split, size)
    traced = tf.function(received, autograph=False).get_concrete_function(fetched)
    return tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, x.dtype), traced.structured_outputs
    )


def has_weights(dataset: Dataset) -> bool:
    """Return whether examples of the training have a `weight`: 0 for one that is unusable."""
    return "weight" in fetched_specs(dataset.train, 1)


def fetched_specs(split: Split | Stream, size: int | None = None) -> Mapping[str, Any]:
    """Return name, shape and dtype of what a split fetches; nothing is read of one by number."""
    if isinstance(split, Stream):
        elements = split.stream().element_spec
        return tf.nest.map_structure(
            lambda spec: tf.TensorSpec([size, *spec.shape], spec.dtype), elements
        )
    fetch = tf.function(split.fetch, autograph=False)
    return fetch.get_concrete_function(tf.TensorSpec([size], tf.int64)).structured_outputs


def model_arguments(
    dataset: Dataset,
    input_shape: tuple[int, ...] | None = None,
    outputs: int | tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return what a model function may request, by name; see `trainer.config.options.targets`.

    Args:
        input_shape: shape of one example's features, if the model is called with others.
        outputs: how many outputs, or their shape, if not one for each class.
    """
    specs = feature_specs(dataset)
    shape = dataset.input_shape
    if input_shape is not None:
        shape = tuple(input_shape)
        specs = tf.TensorSpec([None, *shape], tf.nest.flatten(specs)[0].dtype)
    count = dataset.num_classes if outputs is None else outputs
    return dict(zip(MODEL_ARGUMENTS, (shape, count, dataset, specs), strict=True))


def feature_words(specs: Any) -> str:
    """Return the shapes of the features of a batch in a line, of several with names and dtypes."""
    leaves = tf.nest.flatten(specs)
    words = [f"{spec.dtype.name}{spec.shape[1:].as_list()}" for spec in leaves]
    if not tf.nest.is_nested(specs):
        return words[0].removeprefix(leaves[0].dtype.name if leaves[0].dtype != tf.string else "")
    return ", ".join(f"{name} {word}" for name, word in zip(paths(specs), words, strict=True))
