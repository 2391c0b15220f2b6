"""What a model function returns: is it a model, built, and trained from outside?

Of either Keras: Keras 3 is imported only if the function imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer.config.instantiate import import_target
from trainer.config.schema import Experiment
from trainer.engine.graph.step.step_options import fused_class
from trainer.errors import ConfigError
from trainer.tasks.keras.user_model import own_steps
from trainer.worker.error_summary import error_cause

if TYPE_CHECKING:
    import keras

_KERAS_TASK = "trainer.tasks.keras."


def adapted(
    build: Callable[[], Any],
    key: str,
    node: Mapping[str, Any],
    features: Any,
    experiment: Experiment,
) -> tuple[Any, str]:
    """Build a model; one of Keras 3 is wrapped in what the engine uses of a model.

    Args:
        key: the key of the node of the function that makes it.
        features: specification of a batch's features, a nest; a model without variables is called
            with such.

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
    runs_steps = task.startswith(_KERAS_TASK) or not task.startswith("trainer.")
    check(model, key, node["_target_"], runs_steps=runs_steps)
    keras = sys.modules.get("keras")  # a function that loads a model from a file imports it then
    is_keras_3 = keras is not None and isinstance(model, keras.Layer)
    library: Any = keras if is_keras_3 else tf.keras
    failure = "" if getattr(model, "built", True) else _call_failure(model, library, features)
    if failure and runs_steps and _has_weights(model):
        # Its own steps call its layers, and not the model.
        model.built, failure = True, ""
    if not is_keras_3:
        if lora.rank is not None:
            raise ConfigError(
                f"train.lora.rank ({lora.rank}) needs a model of Keras 3, and {model.name} is of "
                "tf_keras; add train.lora.rank=null, or train some of its layers with train.freeze"
            )
        _forget_vocabularies(model)
        return model, failure
    from trainer.engine.graph.keras3.keras3_model import Keras3Model, add_adapters

    if failure:
        raise not_built(key, model, failure)
    _check_keras3(model, experiment)
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
    """Refuse an optimizer whose updates are not fused."""
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


def _forget_vocabularies(model: Any) -> None:
    """Take vocabularies out of a model's weights: tf_keras has them there, as no variables."""
    for layer in model._flatten_layers() if isinstance(model, tf.keras.layers.Layer) else ():
        weights = layer._non_trainable_weights
        weights[:] = [weight for weight in weights if not hasattr(weight, "num_tensors")]


def _check_keras3(model: keras.Layer, experiment: Experiment) -> None:
    """Refuse what the options rule out for this model."""
    if experiment.strategy.get("devices_per_replica", 1) > 1:
        raise ConfigError(
            "strategy.devices_per_replica divides models of tf_keras alone, and this one is of "
            "Keras 3; add strategy.devices_per_replica=1"
        )
    layers = [x for x in model._flatten_layers() if getattr(x, "synchronized", False)]
    if layers and experiment.jit:
        raise ConfigError(
            "jit cannot be used with Keras 3's synchronized batch normalization "
            f"({layers[0].name}), which communicates within the forward pass; build the layer with "
            "synchronized=False, or use tf_keras"
        )


def _has_weights(model: Any) -> bool:
    """Return whether a model has steps of its own, and all its layers their weights."""
    return bool(own_steps(model)) and all(
        layer.built for layer in model._flatten_layers() if layer is not model
    )


def check(model: Any, key: str, target: str, *, runs_steps: bool) -> None:
    """Check what a model function has returned.

    Args:
        runs_steps: whether the task may run a step of the model's own.

    Raises:
        ConfigError: it is no model, or has a training step of its own.
    """
    if not callable(model) or isinstance(model, type) or not hasattr(type(model), "variables"):
        kind = "None" if model is None else f"a {type(model).__name__}"
        raise ConfigError(
            f"{key}._target_ ({target}) must return a model of Keras, and returns {kind}; add "
            "return model at its end"
        )
    for name, base in own_steps(model).items() if not runs_steps else ():
        raise ConfigError(
            f"{key}: {base.__module__}.{base.__qualname__} overrides {name}, which is not "
            "called: the task's step would train something else; add task=keras, which runs it as "
            "it is written, or remove it"
        )


def ignored(model: Any) -> str:
    """Return in words what a model was compiled with, which is not used; empty: it was not."""
    model = getattr(model, "keras_model", model)  # of Keras 3
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return ""
    return f"its loss ({_name(model.loss)}), optimizer ({type(optimizer).__name__}) and metrics"


def _call_failure(model: Any, library: Any, features: Any) -> str:
    """Build a model by calling it on symbolic inputs; return why it cannot be, or nothing."""
    symbolic = tf.nest.map_structure(
        lambda spec: library.Input(spec.shape[1:], dtype=spec.dtype.name), features
    )
    try:
        model(symbolic)
    except Exception as error:  # a call of the user's, which may be made for other inputs
        return error_cause(error).rstrip(".")
    return ""


def not_built(key: str, model: Any, failure: str) -> ConfigError:
    """Return the error of a model that has no variables, because it cannot be called."""
    return ConfigError(
        f"{key} ({type(model).__name__}) has no variables yet, and calling it with the dataset's "
        f"features fails: {failure}; correct its call, or call it once before it is returned"
    )


def _name(loss: Any) -> str:
    if isinstance(loss, Mapping | list | tuple):
        return ", ".join(map(_name, loss.values() if isinstance(loss, Mapping) else loss))
    return loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", "?"))
