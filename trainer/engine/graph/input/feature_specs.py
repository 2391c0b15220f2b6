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
    known = with_defaults(dataset, DatasetDefaults)
    if known.feature_specs is None:
        dtype = tf.float32 if known.vocabulary_size is None else tf.int32
        return tf.TensorSpec([None, *dataset.input_shape], dtype, "features")
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name), known.feature_specs
    )


def feature_words(specs: Any) -> str:
    """Return the shapes, dtypes and names of the features of a batch in one line."""
    leaves = zip(paths(specs), tf.nest.flatten(specs), strict=True)
    return ", ".join(
        f"{name} {spec.dtype.name}{spec.shape[1:].as_list()}".strip() for name, spec in leaves
    )
