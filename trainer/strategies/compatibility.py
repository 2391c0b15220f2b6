"""Options that must not be combined, and why: one table of rules. No TensorFlow.

A strategy names the rules that hold under it in `Strategy.unsupported`. The parent checks all that
the configuration tells; what depends on the model's layers is checked in the worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.config.options import constraints, signatures
from trainer.config.schema import Experiment, Fault
from trainer.errors import ConfigError
from trainer.optimizers import OF_WHOLE_LAYERS

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.cluster.spec import Cluster
    from trainer.strategies.strategy import Strategy


_NAMES_KERAS = re.compile(r"(?<![\w.])keras(_hub)?\b")
"""Not that of TensorFlow, `tf.keras` or `tf_keras`."""


@dataclass(frozen=True)
class Context:
    """What a rule may depend on besides the configuration.

    Attributes:
        cluster: the cluster as this process sees it; without jobs if none is declared.
        models: all models; none while they have not been built.
    """

    strategy: Strategy
    cluster: Cluster
    models: Iterable[tf.keras.Model] = ()

    def layers(self) -> Iterator[tf.keras.layers.Layer]:
        """Yield the layers of all models, also those within other layers."""
        for model in self.models:
            yield from getattr(model, "all_layers", model.submodules)

    def trains_tf_keras(self, experiment: Experiment) -> bool:
        """Return whether some model is of tf_keras; not if that is known only once it is built."""
        models = list(self.models)
        if not models:
            return not may_be_keras3(experiment)
        return any(not hasattr(model, "all_layers") for model in models)


@dataclass(frozen=True)
class Rule:
    """One combination that is refused.

    Attributes:
        name: the name by which strategies choose this rule; None: it holds under all of them.
        keys: the keys that are refused together, each with a test of its value.
        message: the rest of the message: what they cannot be used with, the reason, the fix.
        condition: what else must hold.
        unless: a key that lifts the rule when it is set.
        tf_keras: whether models of Keras 3 are exempt.
    """

    name: str | None
    keys: Mapping[str, Callable[[Any], bool]]
    message: str
    condition: Callable[[Context], bool] = lambda context: True
    unless: str | None = None
    tf_keras: bool = False

    def problem(self, experiment: Experiment, context: Context) -> str | None:
        """Return the message, or None if nothing is refused."""
        values = {key: _value(experiment, key) for key in self.keys}
        if not all(is_refused(values[key]) for key, is_refused in self.keys.items()):
            return None
        is_lifted = self.unless is not None and _value(experiment, self.unless) is not None
        is_exempt = self.tf_keras and not context.trains_tf_keras(experiment)
        if is_lifted or is_exempt or not self.condition(context):
            return None
        settings = " and ".join(f"{key} ({_value_text(value)})" for key, value in values.items())
        message = self.message.format(strategy=_strategy_text(experiment, context.strategy))
        return f"{settings} cannot be used with {message}"


def _value(experiment: Experiment, key: str) -> Any:
    """Return a key's value; None if the node has no such key."""
    node: Any = experiment
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
    return node


def _value_text(value: Any) -> str:
    value = value.get("_target_", ", ".join(value)) if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else constraints.format_value(value)


def _strategy_text(experiment: Experiment, strategy: Strategy) -> str:
    """Return a strategy as the user chose it, and its class where another was chosen for them."""
    text = f"strategy={experiment.choices['strategy']}"
    name = type(strategy).__name__
    return text if experiment.strategy["_target_"].endswith(f".{name}") else f"{text} ({name})"


def _equals(word: str) -> Callable[[Any], bool]:
    return lambda value: bool(value == word)


def _is_set(value: Any) -> bool:
    return value is not None


def _is_not_none_choice(value: Any) -> bool:
    return value not in (None, "none")


def _several(value: Any) -> bool:
    return value is not None and bool(value > 1)


def _has_words(context: Context) -> bool:
    # Also the inputs of a functional model are layers.
    return any(
        type(layer).__name__ in ("IntegerLookup", "StringLookup", "TextVectorization", "Hashing")
        or getattr(layer, "dtype", None) == "string"
        for layer in context.layers()
    )


def _rests_in_steps(faults: Mapping[str, Fault]) -> bool:
    return any(fault.kind == "slow" and fault.phase == "step" for fault in faults.values())


def _starts_several_processes(context: Context) -> bool:
    return not context.cluster.jobs and len(context.strategy.process_ids(None)) > 1


def _has_synchronized_batch_norm(context: Context) -> bool:
    return any(getattr(layer, "synchronized", False) for layer in context.layers())


def _has_max_pooling(context: Context) -> bool:
    # By name: the parent process must not import TensorFlow.
    return any(
        kind.__name__.startswith("MaxPooling")
        for layer in context.layers()
        for kind in type(layer).__mro__
    )


RULES = (
    Rule(
        name="loss_scaling",
        keys={"precision": _equals("mixed_float16")},
        message="{strategy}: tf_keras scales no loss there, and float16 gradients would vanish; "
        "add precision=mixed_bfloat16 or precision=float32",
        tf_keras=True,
    ),
    Rule(
        name="conditional_loss_scaling",
        keys={"precision": _equals("mixed_float16")},
        message="{strategy}: replicas cannot leave an update out together there, as an overflow "
        "of float16 needs; add precision=mixed_bfloat16 or precision=float32",
    ),
    Rule(
        name="partitioned_precision",
        keys={
            "precision": lambda value: value != "float32",
            "strategy.partitioner": _is_not_none_choice,
        },
        message="{strategy}: tf_keras cannot cast a variable that is in pieces; "
        "add precision=float32 or strategy.partitioner=none",
        tf_keras=True,
    ),
    Rule(
        name=None,
        keys={
            "optimizer._target_": lambda target: str(target).endswith(OF_WHOLE_LAYERS),
            "strategy.partitioner": _is_not_none_choice,
        },
        message="each other: an update depends on the whole layer, and the layer is in pieces; "
        "add strategy.partitioner=none or another optimizer",
    ),
    Rule(
        name="jit",
        keys={"jit": bool},
        message="{strategy}: XLA compiles only what has its variables on the device that computes, "
        "and there they are on another; add jit=false",
        tf_keras=True,
    ),
    Rule(
        name="jit_several_models",
        keys={"jit": bool},
        message="{strategy} and several models: XLA compiles only what has its variables on the "
        "device that computes, and those of the models beside the updated one are on another; "
        "add jit=false",
        condition=lambda context: len(list(context.models)) > 1,
    ),
    Rule(
        name="jit_communication",
        keys={"jit": bool},
        message="{strategy} and synchronized batch normalization: replicas cannot communicate "
        "within what XLA compiles; add jit=false, or choose a model without it",
        condition=_has_synchronized_batch_norm,
    ),
    *(
        Rule(
            name=None,
            keys={f"batch.{name}": test},
            message="synchronized batch normalization: it takes the whole global batch in one "
            f"forward pass; add batch.{name}={off}, or build the layers with synchronized=False "
            "(model.synchronized=false)",
            condition=_has_synchronized_batch_norm,
        )
        for name, test, off in (("accumulate", _several, "1"), ("shards", _is_set, "null"))
    ),
    Rule(
        name=None,
        keys={"eager": bool, "jit": bool},
        message="each other: XLA compiles a function, and eager execution has none; "
        "add jit=false or eager=false",
    ),
    Rule(
        name=None,
        keys={"jit": bool, "strategy.devices_per_replica": _several},
        message="each other: XLA compiles for one device, and a replica has several; add jit=false",
    ),
    Rule(
        name=None,
        keys={"eager": bool, "strategy.devices_per_replica": _several},
        message="each other: gradients are placed in a graph, eager has none; add eager=false",
    ),
    Rule(
        name="eager",
        keys={"eager": bool},
        message="{strategy}: its steps run on other machines or cores, as compiled functions; "
        "add eager=false, or strategy=one_device to debug the model",
    ),
    Rule(
        name="shards_asynchronous",
        keys={"batch.shards": _is_set},
        message="{strategy}: each of its workers makes updates of its own batches, so there is no "
        "global batch to divide; add batch.shards=null",
    ),
    Rule(
        name="shards_order",
        keys={"batch.shards": _is_set},
        message="{strategy}: the order of its sums has not been tested on one; "
        "add batch.shards=null",
    ),
    Rule(
        name="shards_compressed",
        keys={"batch.shards": _is_set, "strategy.compress": _is_not_none_choice},
        message="{strategy}: what is rounded on its way depends on how many replicas send it; "
        "add strategy.compress=none or batch.shards=null",
    ),
    Rule(
        name="actors",
        keys={"env": _is_set},
        message="{strategy}: a learner's replicas run each step together; choose multi_worker",
    ),
    Rule(
        name="actor_feed",
        keys={"env": _is_set},
        message="{strategy}: a learner takes the actors' frames by Python calls within its loop, "
        "which a TPU's loop cannot make; choose mirrored or multi_worker",
    ),
    Rule(
        name="deterministic",
        keys={"deterministic": bool},
        message="{strategy}: workers update the variables in no fixed order, so that no run "
        "repeats; add deterministic=false",
    ),
    Rule(
        name="inline",
        keys={"launch.inline": bool},
        message="{strategy}: it starts several processes, and inline is one; "
        "add launch.inline=false or strategy=one_device",
        condition=_starts_several_processes,
    ),
    Rule(
        name="undo",
        keys={"divergence.action": lambda value: value != "stop"},
        message="{strategy}: other workers have gone on by the time that a step is known to be "
        "bad; add divergence.action=stop",
    ),
    Rule(
        name="audit",
        keys={"watchdog.audit_every_steps": _is_set},
        message="{strategy}: there is one copy of each variable, and nothing to compare it with; "
        "add watchdog.audit_every_steps=null",
    ),
    Rule(
        name="slow_steps",
        keys={"fault": _rests_in_steps},
        message="{strategy}: what XLA compiles for a TPU cannot rest; remove the action slow, or "
        "rehearse it with strategy=mirrored",
    ),
    Rule(
        name="spikes",
        keys={"divergence.spike_sigma": _is_set},
        message="{strategy}: the losses of its workers have no order; "
        "add divergence.spike_sigma=null",
    ),
    Rule(
        name="conditional_update",
        keys={"divergence.action": _equals("skip")},
        message="{strategy}: replicas cannot leave an update out together there; "
        "add divergence.action=rollback",
    ),
    *(
        Rule(
            name=key.partition(".")[2],
            keys={key: _is_set},
            message="{strategy}: its steps are handed out, and nobody runs the next one on all "
            f"replicas; add {key}=null",
        )
        for key in ("summary.histograms", "summary.images")
    ),
    Rule(
        name=None,
        keys={"jit": bool, "deterministic": bool},
        message="max pooling: XLA has no deterministic gradient of it; "
        "add jit=false or deterministic=false",
        condition=_has_max_pooling,
    ),
    Rule(
        name=None,
        keys={"jit": bool},
        message="a layer that takes texts or looks words up: XLA compiles neither tables nor "
        "strings; add jit=false, or look them up in the dataset",
        condition=_has_words,
    ),
)


def check(
    experiment: Experiment,
    strategy: Strategy,
    cluster: Cluster,
    models: Iterable[tf.keras.Model] = (),
) -> None:
    """Refuse what cannot be combined.

    Args:
        strategy: the strategy, resolved as far as this process can.
        cluster: the cluster as this process sees it.
        models: all models, once they have been built.

    Raises:
        ConfigError: with a line for each rule that is broken.
    """
    context = Context(strategy, cluster, models)
    rules = [rule for rule in RULES if rule.name is None or rule.name in strategy.unsupported]
    if problems := [line for rule in rules if (line := rule.problem(experiment, context))]:
        raise ConfigError(*problems)


def may_be_keras3(experiment: Experiment) -> bool:
    """Return whether a model may be of Keras 3; for sure that is known once it is built.

    Functions of this project are known by their source, all others may return any model.
    """
    nodes = list((experiment.task or {}).values())  # models of a task are built from its nodes
    return any(map(_may_use_keras3, _targets([experiment.model, *nodes])))


def _may_use_keras3(target: str) -> bool:
    if not target.startswith("trainer."):
        return not target.startswith(("tensorflow.", "tf_keras."))
    file = signatures.source(target.rpartition(".")[0])
    return file is not None and bool(_NAMES_KERAS.search(file.read_text(encoding="utf-8")))


def _targets(node: Any) -> Iterator[str]:
    """Yield the targets of a node and of the nodes in it."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str):
            yield target
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _targets(inner)
