"""What stands for the dataset of a task that learns from environments."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.engine.evaluation.samples import NumberedSplit
from trainer.protocols import Batch, Environment, EnvSpec, Split
from trainer.reinforcement.rollout import spec_of


class EnvironmentData:
    """Describes an environment as a dataset; its splits hold nothing.

    Attributes:
        make: makes one more environment.
        spec: its observations and actions.

    Args:
        make: makes one environment.

    Raises:
        ConfigError: it has observations or actions that are no arrays.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self.make = make
        first = make()
        self.spec: EnvSpec = spec_of(first)
        if hasattr(first, "close"):
            first.close()
        self.input_shape: tuple[int, ...] = self.spec.observation_shape
        self.num_classes = self.spec.num_outputs
        self.num_draws = 0
        # An epoch is as long as `train.steps_per_epoch` says: there is no pass over the data.
        self.train: Split = NumberedSplit(1)
        self.test: Split = NumberedSplit(1)

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Change nothing of an unroll."""
        return {}
