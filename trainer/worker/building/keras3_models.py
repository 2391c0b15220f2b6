"""Models of Keras 3: imported only if a model function imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer.config.instantiate import import_target
from trainer.config.schema import Experiment
from trainer.engine.graph.step.step_options import fused_class
from trainer.errors import ConfigError
from trainer.worker.building import returned_model

if TYPE_CHECKING:
    import keras


def adapted(
    build: Callable[[], Any],
    key: str,
    node: Mapping[str, Any],
    features: tf.TensorSpec,
    experiment: Experiment,
) -> tuple[Any, str]:
    """Build a model; one of Keras 3 is wrapped in what the engine uses of a model.

    Args:
        build: makes the model.
        key: the key of the node of the function that makes it.
        node: that node.
        features: the features of a batch; a model without variables is called with such.
        experiment: the effective configuration.

    Returns:
        The model, and why a model of tf_keras could not be called, if it has no variables yet.

    Raises:
        ConfigError: the model cannot be trained here.
    """
    import_target(node)  # and with it the Keras that it uses
    lora = experiment.train.lora
    _set_policy(experiment.precision)
    model = build()
    task = str((experiment.task or {}).get("_target_"))
    returned_model.check(model, key, node["_target_"], is_own_task=not task.startswith("trainer."))
    keras = sys.modules.get("keras")  # a function that loads a model from a file imports it then
    is_keras_3 = keras is not None and isinstance(model, keras.Layer)
    library: Any = keras if is_keras_3 else tf.keras
    failure = ""
    if not getattr(model, "built", True):
        symbolic = library.Input(features.shape[1:], dtype=features.dtype.name)
        failure = returned_model.call_failure(model, symbolic)
    if not is_keras_3:
        _refuse_adapters(model, lora.rank)
        return model, failure
    from trainer.engine.graph.keras3.adapters import add_adapters
    from trainer.engine.graph.keras3.keras3_model import Keras3Model

    if failure:
        raise returned_model.not_built(key, model, failure)
    _check(model, experiment)
    if lora.rank is not None and model.built:
        add_adapters(model, lora.rank, lora.layers)
    return Keras3Model(model), ""


def _set_policy(precision: str) -> None:
    """Set the precision of Keras 3, if the model's module has imported it."""
    if keras := sys.modules.get("keras"):
        from trainer.engine.graph.keras3.keras3_checks import refuse_remat

        keras.config.set_dtype_policy(precision)
        refuse_remat()


def check_optimizer(key: str, optimizer: Any) -> None:
    """Refuse an optimizer whose updates are not fused.

    Raises:
        ConfigError: it is one.
    """
    if type(optimizer).__module__.startswith("keras."):
        raise ConfigError(
            f"{key} ({type(optimizer).__name__}) is an optimizer of Keras 3, which clips before "
            "gradients are summed and loses counts under parameter servers; its models are trained "
            "by the optimizers here too: choose one, such as optimizer=adam"
        )
    if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        raise ConfigError(
            f"{key} ({type(optimizer).__name__}) is none of tf.keras.optimizers.legacy, whose "
            f"updates are fused; use one such as {fused_class(optimizer)}, or a choice such as "
            "optimizer=adam"
        )


def _refuse_adapters(model: Any, rank: int | None) -> None:
    if rank is not None:
        raise ConfigError(
            f"train.lora.rank ({rank}) needs a model of Keras 3, and {model.name} is of tf_keras; "
            "add train.lora.rank=null, or train some of its layers with train.freeze"
        )


def _check(model: keras.Layer, experiment: Experiment) -> None:
    """Refuse what the options rule out for this model."""
    if experiment.strategy.get("devices_per_replica", 1) > 1:
        raise ConfigError(
            "strategy.devices_per_replica divides models of tf_keras alone, and this one is of "
            "Keras 3; add strategy.devices_per_replica=1"
        )
    batch = experiment.batch
    options = {
        "jit": experiment.jit,
        "batch.accumulate": batch.accumulate > 1,
        "batch.shards": batch.shards is not None,
    }
    layers = [x for x in model._flatten_layers() if getattr(x, "synchronized", False)]
    refused = [key for key, is_set in options.items() if is_set]
    if layers and refused:
        raise ConfigError(
            f"{refused[0]} cannot be used with Keras 3's synchronized batch normalization "
            f"({layers[0].name}), which communicates within the forward pass; build the layer with "
            "synchronized=False, or use tf_keras"
        )
