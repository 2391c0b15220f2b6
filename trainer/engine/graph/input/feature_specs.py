"""What a model is called with: the specification of a batch's features."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.config.options.targets import MODEL_ARGUMENTS
from trainer.protocols import Dataset, DatasetDefaults, with_defaults


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
        lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name),
        own.feature_specs,
    )


def model_arguments(
    dataset: Dataset,
    input_shape: tuple[int, ...] | None = None,
    outputs: int | tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return what a model function may ask for, by name; see `trainer.config.options.targets`.

    Args:
        dataset: the data.
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
