"""What stands for the dataset of a task that learns from environments, and its evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, Evaluator, Predictor
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.row_metrics import require_evaluated
from trainer.engine.evaluation.subset import NumberedSplit
from trainer.engine.graph.input.feed import Source
from trainer.engine.pacing import Stopped
from trainer.protocols import Batch, Environment, EnvSpec, Split
from trainer.reinforcement.connection import COUNTS
from trainer.reinforcement.learner import ActorTrainLoop, Trained
from trainer.reinforcement.rollout import EnvironmentGroup, acting_task, run_episodes, spec_of


class EpisodeEvaluator(Evaluator):
    """Runs episodes with the greedy policy, in the chief's process; the others wait for it.

    The episodes begin alike in each evaluation: two of them differ by their weights alone.

    Args:
        inference: says how many episodes there are; as many environments are stepped side by side.
    """

    names = ("return", "episode_length")

    def __init__(self, inference: Inference, make: Callable[[], Environment]) -> None:
        super().__init__()
        self._state = inference.state
        self._make = make
        self._num_episodes = inference.experiment.evaluate.episodes
        self._seed = inference.experiment.seed
        self._process_group = inference.process_group
        self._channel = inference.channel
        task = acting_task(inference.state.task)
        self._act = tf.function(task.act_greedily, autograph=False)
        self._is_compiled = False

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        self._state.swap_averages()
        try:
            text = ""
            if self._process_group.is_chief:
                with suppress(Stopped):
                    text = json.dumps(self._episodes(stop_requested, enter))
            text = self._process_group.broadcast_text_from_chief(text)
        finally:
            self._state.swap_averages()
        if not text:
            raise Stopped
        return Evaluation(json.loads(text))

    def _episodes(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> dict[str, float]:
        def check() -> None:
            self._channel.beat()
            if stop_requested():
                raise Stopped

        def act(observations: np.ndarray) -> np.ndarray:
            actions: np.ndarray = self._act(tf.constant(observations)).numpy()
            return actions

        environments = [self._make() for _ in range(self._num_episodes)]
        group = EnvironmentGroup(environments, self._seed)
        if not self._is_compiled:
            enter("compile")
            act(group.observations)
            self._is_compiled = True
        enter("evaluate")
        try:
            episodes = run_episodes(group, act, check)
        finally:
            group.close()
        return {name: float(np.mean(values)) for name, values in episodes.items()}


class EnvironmentData:
    """Describes an environment as a dataset; its splits hold nothing.

    It has the members of `trainer.protocols.LoopDefaults`.

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
        return {}

    def make_loop(self, run: Trained) -> ActorTrainLoop:
        return ActorTrainLoop(run, self, self.env)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> EpisodeEvaluator:
        require_evaluated(inference.experiment, EpisodeEvaluator.names, inference.directions)
        return EpisodeEvaluator(inference, self.make)
