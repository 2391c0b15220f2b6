"""Options that must not be combined, and why: one table of rules. No TensorFlow.

A strategy names the rules that hold under it in `Strategy.unsupported`. The parent checks all that
the configuration tells; what depends on the model's layers is checked in the worker, once the model
has been built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.config import constraints
from trainer.config.schema import Experiment
from trainer.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.cluster.spec import Cluster
    from trainer.strategies.base import Strategy


@dataclass(frozen=True)
class Context:
    """What a rule may depend on besides the configuration.

    Attributes:
        strategy: the strategy.
        cluster: the cluster as this process sees it; without jobs if none is declared.
        models: all models; none while they have not been built.
    """

    strategy: Strategy
    cluster: Cluster
    models: Iterable[tf.keras.Model] = ()

    def layers(self) -> Iterator[tf.keras.layers.Layer]:
        """Yield the layers of all models, also those within other layers."""
        return (layer for model in self.models for layer in model.submodules)


@dataclass(frozen=True)
class Rule:
    """One combination that is refused.

    Attributes:
        name: the name by which strategies choose this rule; None: it holds under all of them.
        keys: the keys that are refused together, each with a test of its value.
        message: the rest of the message, after the keys: what they cannot be used with, the reason,
            what to change.
        condition: what else must hold.
        unless: a key that lifts the rule when it is set.
    """

    name: str | None
    keys: Mapping[str, Callable[[Any], bool]]
    message: str
    condition: Callable[[Context], bool] = lambda context: True
    unless: str | None = None

    def problem(self, experiment: Experiment, context: Context) -> str | None:
        """Return the message, or None if nothing is refused."""
        values = {key: _value(experiment, key) for key in self.keys}
        if not all(is_refused(values[key]) for key, is_refused in self.keys.items()):
            return None
        if self.unless is not None and _is_set(_value(experiment, self.unless)):
            return None
        if not self.condition(context):
            return None
        settings = " and ".join(
            f"{key} ({value if isinstance(value, str) else constraints.format_value(value)})"
            for key, value in values.items()
        )
        strategy = _strategy_text(experiment, context.strategy)
        return f"{settings} cannot be used with {self.message.format(strategy=strategy)}"


def _equals(word: str) -> Callable[[Any], bool]:
    return lambda value: bool(value == word)


def _is_set(value: Any) -> bool:
    return value is not None


def _is_not_none_choice(value: Any) -> bool:
    return value not in (None, "none")


def _several(value: Any) -> bool:
    return bool(value > 1)


def _starts_several_processes(context: Context) -> bool:
    return not context.cluster.jobs and len(context.strategy.process_ids(None)) > 1


def _has_batch_norm(context: Context) -> bool:
    return any(hasattr(layer, "synchronized") for layer in context.layers())


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
    ),
    Rule(
        name="compressed_loss_scaling",
        keys={"precision": _equals("mixed_float16"), "strategy.compress": _is_not_none_choice},
        message="{strategy}: the loss scale must see each overflow of a gradient, which "
        "compression may hide; add strategy.compress=none or precision=mixed_bfloat16",
    ),
    Rule(
        name="partitioned_precision",
        keys={
            "precision": lambda value: value != "float32",
            "strategy.partitioner": _is_not_none_choice,
        },
        message="{strategy}: tf_keras cannot cast a variable that is in pieces; "
        "add precision=float32 or strategy.partitioner=none",
    ),
    Rule(
        name="jit",
        keys={"jit": bool},
        message="{strategy}: XLA compiles only what has its variables on the device that computes, "
        "and there they are on another; add jit=false",
    ),
    Rule(
        name="jit_communication",
        keys={"jit": bool},
        message="{strategy} and synchronised batch normalisation: replicas cannot communicate "
        "within what XLA compiles; add jit=false, or choose a model without it",
        condition=_has_synchronized_batch_norm,
    ),
    Rule(
        name="accumulate_communication",
        keys={"batch.accumulate": _several},
        message="{strategy} and synchronised batch normalisation: replicas cannot communicate "
        "within the loop over micro-batches; add batch.accumulate=1, or choose a model without it",
        condition=_has_synchronized_batch_norm,
    ),
    Rule(
        name="accumulate_statistics",
        keys={"batch.accumulate": _several},
        message="{strategy} and batch normalisation: moving statistics that all replicas share "
        "cannot be updated within the loop over micro-batches; add batch.accumulate=1, or choose a "
        "model without it",
        condition=_has_batch_norm,
        unless="batch.shards",
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
        name=None,
        keys={"batch.shards": _is_set},
        message="synchronised batch normalisation: it adds up over the replicas within the model, "
        "in an order that depends on their number; add batch.shards=null, or choose a model with "
        "plain batch normalisation, which is then over each shard",
        condition=_has_synchronized_batch_norm,
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
    Rule(
        name="histograms",
        keys={"summary.histograms": _is_set},
        message="{strategy}: its steps are handed out, and nobody runs the next one on all "
        "replicas; add summary.histograms=null",
    ),
    Rule(
        name="images",
        keys={"summary.images": _is_set},
        message="{strategy}: its steps are handed out, and nobody runs the next one on all "
        "replicas; add summary.images=null",
    ),
    Rule(
        name=None,
        keys={"jit": bool, "deterministic": bool},
        message="max pooling: XLA has no deterministic gradient of it; "
        "add jit=false or deterministic=false",
        condition=_has_max_pooling,
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
        experiment: the checked configuration.
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


def _value(experiment: Experiment, key: str) -> Any:
    """Return a key's value; None if the node has no such key."""
    node: Any = experiment
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else getattr(node, name)
    return node


def _strategy_text(experiment: Experiment, strategy: Strategy) -> str:
    """Return a strategy as the user chose it, and its class where another was chosen for them."""
    choice = experiment.choices["strategy"]
    configured = experiment.strategy["_target_"].rpartition(".")[2]
    resolved = type(strategy).__name__
    return f"strategy={choice}" if configured == resolved else f"strategy={choice} ({resolved})"
