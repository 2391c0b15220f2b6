"""The strategy that an experiment selects; without TensorFlow, for the parent selects it too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.strategies.one_device import OneDevice
from trainer.strategies.strategy import Strategy


def select_strategy(experiment: Experiment) -> Strategy:
    """Return the configured strategy, not resolved yet.

    An export runs on one device, after any strategy. A node among the strategy's
    options becomes a function that creates the object, because that may need TensorFlow.
    """
    if experiment.mode == "export":
        return OneDevice()
    nodes = {
        name: value
        for name, value in experiment.strategy.items()
        if isinstance(value, Mapping) and "_target_" in value
    }
    factories = {
        name: partial(instantiate, node, f"strategy.{name}") for name, node in nodes.items()
    }
    return instantiate({**experiment.strategy, **factories}, "strategy")
