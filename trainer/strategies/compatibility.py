"""Options that must not be combined, and why. No TensorFlow.

`Strategy.unsupported` and `Strategy.refused` have what cannot be used under one strategy, this
module what under none.
The parent checks what the configuration shows; what depends on the model's layers is checked in
the worker.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainer.config.options import constraints, signatures
from trainer.config.schema import Experiment
from trainer.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.cluster.spec import Cluster
    from trainer.strategies.strategy import Refusals, Strategy

_NAMES_KERAS = re.compile(r"(?<![\w.])keras(_hub)?\b")
"""Not that of TensorFlow, `tf.keras` or `tf_keras`."""

NO_AUDIT = {
    "watchdog.audit_every_steps": "there is one copy of each variable, and nothing to compare it "
    "with; add watchdog.audit_every_steps=null"
}
NOT_EAGER = (
    "its steps run on other machines or cores, as compiled functions; add eager=false, or "
    "strategy=one_device to debug the model"
)


def check(
    experiment: Experiment,
    strategy: Strategy,
    cluster: Cluster,
    models: Collection[tf.keras.Model] = (),
) -> None:
    """Refuse what cannot be combined.

    Args:
        models: all models, once they have been built.

    Raises:
        ConfigError: with a line for each combination.
    """
    own = [*_unsupported(experiment, strategy), *strategy.refused(experiment, models)]
    if experiment.launch.inline and not cluster.jobs and len(strategy.process_ids(None)) > 1:
        why = "it starts several processes, and inline is one"
        own.append(("launch.inline", f"{why}; add launch.inline=false or strategy=one_device"))
    refused = [(keys, f"{_strategy_text(experiment, strategy)}: {why}") for keys, why in own]
    refused += _general(experiment, strategy, models)
    if refused:
        raise ConfigError(
            *(f"{_settings(experiment, keys)} cannot be used with {why}" for keys, why in refused)
        )


def _unsupported(experiment: Experiment, strategy: Strategy) -> Refusals:
    for setting, why in strategy.unsupported.items():
        key, _, refused = setting.partition("=")
        value = _value(experiment, key)
        if value == refused if refused else value not in (None, False):
            yield key, why


def _general(
    experiment: Experiment, strategy: Strategy, models: Collection[tf.keras.Model]
) -> Refusals:
    """Yield what is refused under all strategies."""
    jit = experiment.jit
    if synchronizes_batch_norm(models):
        text = (
            "synchronized batch normalization: it takes the whole global batch in one forward "
            "pass; add {}, or build the layers with synchronized=False (model.synchronized=false)"
        )
        if experiment.batch.accumulate > 1:
            yield "batch.accumulate", text.format("batch.accumulate=1")
        if experiment.batch.shards is not None:
            yield "batch.shards", text.format("batch.shards=null")
    if experiment.eager and jit:
        why = "each other: XLA compiles a function, and eager execution has none"
        yield "eager jit", f"{why}; add jit=false or eager=false"
    if strategy.devices_per_replica > 1:
        if jit:
            why = "each other: XLA compiles for one device, and a replica has several"
            yield "jit strategy.devices_per_replica", f"{why}; add jit=false"
        if experiment.eager:
            why = "each other: gradients are placed in a graph, eager has none"
            yield "eager strategy.devices_per_replica", f"{why}; add eager=false"
    if jit and experiment.deterministic and any(map(_is_max_pooling, _layers(models))):
        why = "max pooling: XLA has no deterministic gradient of it"
        yield "jit deterministic", f"{why}; add jit=false or deterministic=false"
    if jit and any(map(_takes_words, _layers(models))):
        why = "a layer that takes texts or looks words up: XLA compiles neither tables nor strings"
        yield "jit", f"{why}; add jit=false, or look them up in the dataset"


def one_copy(experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
    """Yield what is refused where all replicas share one copy of each variable."""
    if experiment.precision == "mixed_float16" and trains_tf_keras(experiment, models):
        yield (
            "precision",
            "tf_keras scales no loss there, and float16 gradients would vanish; "
            "add precision=mixed_bfloat16 or precision=float32",
        )
    if experiment.jit and (trains_tf_keras(experiment, models) or len(models) > 1):
        yield (
            "jit",
            "XLA compiles only what has its variables on the device that computes, and there "
            "they are on another; add jit=false",
        )


def no_jit_of_communication(experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
    """Yield `jit` of a model whose forward pass communicates."""
    if experiment.jit and synchronizes_batch_norm(models):
        yield (
            "jit",
            "replicas cannot communicate within what XLA compiles, and synchronized batch "
            "normalization does; add jit=false, or choose a model without it",
        )


def synchronizes_batch_norm(models: Collection[tf.keras.Model]) -> bool:
    """Return whether a layer computes its moments over all replicas."""
    return any(getattr(layer, "synchronized", False) for layer in _layers(models))


def trains_tf_keras(experiment: Experiment, models: Collection[tf.keras.Model]) -> bool:
    """Return whether some model is of tf_keras; not if only its build shows that."""
    if not models:
        return not may_be_keras3(experiment)
    return any(not hasattr(model, "all_layers") for model in models)


def may_be_keras3(experiment: Experiment) -> bool:
    """Return whether a model may be of Keras 3; its build shows it for sure.

    Functions of this project are judged by their source, all others may return any model.
    """
    nodes = list((experiment.task or {}).values())  # models of a task are built from its nodes
    return any(map(_may_use_keras3, _targets([experiment.model, *nodes])))


def _may_use_keras3(target: str) -> bool:
    if not target.startswith("trainer."):
        return not target.startswith(("tensorflow.", "tf_keras."))
    file = signatures.source(target.rpartition(".")[0])
    return file is not None and bool(_NAMES_KERAS.search(file.read_text(encoding="utf-8")))


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str):
            yield target
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _targets(inner)


def _layers(models: Collection[tf.keras.Model]) -> Iterator[tf.keras.layers.Layer]:
    """Yield the layers of all models, also those within other layers."""
    for model in models:
        yield from getattr(model, "all_layers", model.submodules)


def _is_max_pooling(layer: tf.keras.layers.Layer) -> bool:
    # By name: the parent process must not import TensorFlow.
    return any(kind.__name__.startswith("MaxPooling") for kind in type(layer).__mro__)


def _takes_words(layer: tf.keras.layers.Layer) -> bool:
    # Also the inputs of a functional model are layers.
    lookups = ("IntegerLookup", "StringLookup", "TextVectorization", "Hashing")
    return type(layer).__name__ in lookups or getattr(layer, "dtype", None) == "string"


def _strategy_text(experiment: Experiment, strategy: Strategy) -> str:
    """Return a strategy as the user chose it, and its class where another was chosen for them."""
    text = f"strategy={experiment.choices['strategy']}"
    name = type(strategy).__name__
    return text if experiment.strategy["_target_"].endswith(f".{name}") else f"{text} ({name})"


def _value(experiment: Experiment, key: str) -> Any:
    value: Any = experiment
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def _settings(experiment: Experiment, keys: str) -> str:
    """Return keys with their values."""
    texts = []
    for key in keys.split(" "):
        value = _value(experiment, key)
        if isinstance(value, Mapping):
            value = value.get("_target_", ", ".join(value))
        shown = value if isinstance(value, str) else constraints.format_value(value)
        texts.append(f"{key} ({shown})")
    return " and ".join(texts)
