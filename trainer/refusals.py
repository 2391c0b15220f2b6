"""What must not be combined, and why: one table. A strategy names the rows that are wrong or crash under it. No TensorFlow.

What depends on the model's layers is known in the worker alone, once the model has been built; all else in the parent too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer import rules
from trainer.errors import ConfigError
from trainer.schema import Experiment

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.cluster import Cluster
    from trainer.strategies.base import Strategy


@dataclass(frozen=True)
class Here:
    """What a row may ask besides the configuration.

    Attributes:
        how: the strategy.
        cluster: the cluster as this process sees it; without jobs if none is declared.
        models: all models; none while they have not been built.
    """

    how: Strategy
    cluster: Cluster
    models: Iterable[tf.keras.Model] = ()

    def layers(self) -> Iterator[tf.keras.layers.Layer]:
        """Gives the layers of all models, also those within other layers."""
        return (layer for model in self.models for layer in model.submodules)


@dataclass(frozen=True)
class Refusal:
    """A row of the table.

    Attributes:
        name: a strategy that has it in `cannot` means this row; None: it holds under all of them.
        keys: the keys that are refused together, and for each which of its values are.
        line: the rest of the message: with what they cannot be used, the reason, the way out.
        when: what else must be so.
    """

    name: str | None
    keys: Mapping[str, Callable[[Any], bool]]
    line: str
    when: Callable[[Here], bool] = lambda here: True

    def problem(self, experiment: Experiment, here: Here) -> str | None:
        """Gives the message, or None if nothing is refused."""
        values = {key: _value(experiment, key) for key in self.keys}
        if not all(refused(values[key]) for key, refused in self.keys.items()) or not self.when(here):
            return None
        given = " and ".join(f"{key} ({value if isinstance(value, str) else rules.shown(value)})" for key, value in values.items())
        return f"{given} cannot be used with {self.line.format(strategy=_named(experiment, here.how))}"


def _is(word: str) -> Callable[[Any], bool]:
    return lambda value: bool(value == word)


def _starts_several(here: Here) -> bool:
    return not here.cluster.jobs and len(here.how.tasks(None)) > 1


def _normalises(here: Here) -> bool:
    return any(hasattr(layer, "synchronized") for layer in here.layers())


def _synchronises(here: Here) -> bool:
    return any(getattr(layer, "synchronized", False) for layer in here.layers())


def _pools(here: Here) -> bool:
    # By name: the parent asks too, and must not import TensorFlow.
    return any(kind.__name__.startswith("MaxPooling") for layer in here.layers() for kind in type(layer).__mro__)


TABLE = (
    Refusal(
        "loss_scaling",
        {"precision": _is("mixed_float16")},
        "{strategy}: tf_keras scales no loss there, and float16 gradients would vanish; add precision=mixed_bfloat16 or precision=float32",
    ),
    Refusal(
        "compressed_loss_scaling",
        {"precision": _is("mixed_float16"), "strategy.compress": lambda word: word not in (None, "none")},
        "{strategy}: the loss scale must see each overflow of a gradient, which compression may hide; "
        "add strategy.compress=none or precision=mixed_bfloat16",
    ),
    Refusal(
        "partitioned_precision",
        {"precision": lambda word: word != "float32", "strategy.partitioner": lambda word: word not in (None, "none")},
        "{strategy}: tf_keras cannot cast a variable that is in pieces; add precision=float32 or strategy.partitioner=none",
    ),
    Refusal(
        "jit",
        {"jit": bool},
        "{strategy}: XLA compiles only what has its variables on the device that computes, and there they are on another; add jit=false",
    ),
    Refusal(
        "jit_communication",
        {"jit": bool},
        "{strategy} and synchronised batch normalisation: replicas cannot communicate within what XLA compiles; "
        "add jit=false, or choose a model without it",
        _synchronises,
    ),
    Refusal(
        "accumulate_communication",
        {"batch.accumulate": lambda parts: parts > 1},
        "{strategy} and synchronised batch normalisation: replicas cannot communicate within the loop over micro-batches; "
        "add batch.accumulate=1, or choose a model without it",
        _synchronises,
    ),
    Refusal(
        "accumulate_statistics",
        {"batch.accumulate": lambda parts: parts > 1},
        "{strategy} and batch normalisation: moving statistics that all replicas share cannot be updated within the loop over "
        "micro-batches; add batch.accumulate=1, or choose a model without it",
        _normalises,
    ),
    Refusal(
        "deterministic",
        {"deterministic": bool},
        "{strategy}: workers update the variables in no fixed order, so that no run repeats; add deterministic=false",
    ),
    Refusal(
        "inline",
        {"launch.inline": bool},
        "{strategy}: it starts several processes, and inline is one; add launch.inline=false or strategy=one_device",
        _starts_several,
    ),
    Refusal(
        "undo",
        {"divergence.action": lambda action: action != "stop"},
        "{strategy}: other workers have gone on by the time that a step is known to be bad; add divergence.action=stop",
    ),
    Refusal(
        "spikes",
        {"divergence.spike_sigma": lambda sigma: sigma is not None},
        "{strategy}: the losses of its workers have no order; add divergence.spike_sigma=null",
    ),
    Refusal(
        "conditional_update",
        {"divergence.action": _is("skip")},
        "{strategy}: replicas cannot leave an update out together there; add divergence.action=rollback",
    ),
    *(
        Refusal(
            what,
            {f"summary.{what}": lambda steps: steps is not None},
            f"{{strategy}}: its steps are handed out, and nobody runs the next one on all replicas; add summary.{what}=null",
        )
        for what in ("histograms", "images")
    ),
    Refusal(
        None,
        {"jit": bool, "deterministic": bool},
        "max pooling: XLA has no deterministic gradient of it; add jit=false or deterministic=false",
        _pools,
    ),
)


def check(experiment: Experiment, how: Strategy, cluster: Cluster, models: Iterable[tf.keras.Model] = ()) -> None:
    """Refuses what cannot be combined.

    Args:
        experiment: the checked configuration.
        how: the strategy, resolved as far as it can be here.
        cluster: the cluster as this process sees it.
        models: all models, once they have been built.

    Raises:
        ConfigError: with a line for each row that holds.
    """
    here = Here(how, cluster, models)
    rows = [row for row in TABLE if row.name is None or {row.name} <= how.cannot]
    if problems := [line for row in rows if (line := row.problem(experiment, here))]:
        raise ConfigError(*problems)


def _value(experiment: Experiment, key: str) -> Any:
    """Gives a key's value; None for an option that is not there."""
    node: Any = experiment
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else getattr(node, name)
    return node


def _named(experiment: Experiment, how: Strategy) -> str:
    """Names a strategy as the user chose it, and by its class if that does not follow from the choice."""
    choice, written, made = experiment.choices["strategy"], experiment.strategy["_target_"].rpartition(".")[2], type(how).__name__
    return f"strategy={choice}" if written == made else f"strategy={choice} ({made})"
