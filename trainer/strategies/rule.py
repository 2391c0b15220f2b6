"""One combination of options that is refused. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.config import model_kind
from trainer.config.options import constraints
from trainer.config.schema import Experiment

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.cluster.spec import Cluster
    from trainer.strategies.strategy import Strategy


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
        for model in self.models:
            yield from getattr(model, "all_layers", model.submodules)

    def trains_tf_keras(self, experiment: Experiment) -> bool:
        """Return whether some model is of tf_keras; not if that is known only once it is built."""
        models = list(self.models)
        if not models:
            return not model_kind.may_be_keras3(experiment)
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
        if is_lifted or not self.condition(context):
            return None
        if self.tf_keras and not context.trains_tf_keras(experiment):
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
