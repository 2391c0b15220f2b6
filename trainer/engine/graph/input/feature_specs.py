"""What a model is called with: the specification of a batch's features."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.protocols import Dataset, DatasetDefaults, paths, with_defaults


def feature_specs(dataset: Dataset) -> Any:
    """Return the features of a batch as the model receives them: a nest of `tf.TensorSpec`.

    The first dimension of each is the batch, None. Without specifications of its own a dataset has
    one tensor: int32 of tokens, else float32.
    """
    own = with_defaults(dataset, DatasetDefaults)
    if own.feature_specs is None:
        dtype = tf.float32 if own.vocabulary_size is None else tf.int32
        return tf.TensorSpec([None, *dataset.input_shape], dtype, "features")
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name), own.feature_specs
    )


def feature_words(specs: Any) -> str:
    """Return the shapes of the features of a batch in one line, of several with names and dtypes.

    Args:
        specs: a nest of what has a shape and a dtype.
    """
    leaves = tf.nest.flatten(specs)
    words = [f"{spec.dtype.name}{spec.shape[1:].as_list()}" for spec in leaves]
    if not tf.nest.is_nested(specs):
        return words[0].removeprefix(leaves[0].dtype.name if leaves[0].dtype != tf.string else "")
    return ", ".join(f"{name} {word}" for name, word in zip(paths(specs), words, strict=True))
