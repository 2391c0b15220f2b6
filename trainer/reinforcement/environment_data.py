"""What stands for the dataset of a task that learns from environments."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.metric_names import require_evaluated
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.evaluation.sample_metrics import NumberedSplit
from trainer.engine.graph.input.feed import Source
from trainer.engine.loop_parts import LoopParts
from trainer.protocols import Batch, Environment, EnvSpec, Split
from trainer.reinforcement.episode_evaluator import EpisodeEvaluator
from trainer.reinforcement.learner import ActorTrainLoop, make_loop
from trainer.reinforcement.learner_server import COUNTS
from trainer.reinforcement.rollout import spec_of


class EnvironmentData:
    """Describes an environment as a dataset; its splits hold nothing.

    It has the members of `trainer.protocols.LoopDefaults`.

    Attributes:
        make: makes one more environment.
        env: its observations and actions.

    Args:
        make: makes one environment.

    Raises:
        ConfigError: it has observations or actions that are no arrays.
    """

    count_names = COUNTS

    def __init__(self, make: Callable[[], Environment]) -> None:
        self.make = make
        first = make()
        self.env: EnvSpec = spec_of(first)
        if hasattr(first, "close"):
            first.close()
        self.input_shape: tuple[int, ...] = self.env.observation_shape
        self.num_classes = self.env.num_outputs
        self.num_draws = 0
        # An epoch is as long as `train.steps_per_epoch` says: there is no pass over the data.
        self.train: Split = NumberedSplit(1)
        self.test: Split = NumberedSplit(1)

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Change nothing of an unroll."""
        return {}

    def make_loop(self, parts: LoopParts) -> ActorTrainLoop:
        """Return the loop that trains on what actors send."""
        return make_loop(parts, self, self.env)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> EpisodeEvaluator:
        """Return what runs whole episodes.

        Raises:
            ConfigError: what selects is not evaluated.
        """
        require_evaluated(inference.experiment, EpisodeEvaluator.names, inference.directions)
        return EpisodeEvaluator(inference, self.make)
