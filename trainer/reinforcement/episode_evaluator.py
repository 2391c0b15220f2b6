"""Evaluation of a task that acts: the mean return of whole episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation
from trainer.engine.evaluation.inference import Inference
from trainer.engine.pacing import Stopped
from trainer.protocols import Environment
from trainer.reinforcement.published_policy import acting_task
from trainer.reinforcement.rollout import EnvironmentGroup, run_episodes


class EpisodeEvaluator:
    """Runs episodes with the greedy policy, in the chief's process; the others wait for it.

    The episodes begin alike in each evaluation: two of them differ by their weights alone.

    Args:
        inference: says how many episodes there are; as many environments are stepped side by side.
        make: makes an environment.
    """

    names = ("return", "episode_length")

    def __init__(self, inference: Inference, make: Callable[[], Environment]) -> None:
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
        """Compute `return` and `episode_length`, the means over all episodes; see `Evaluator`."""
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
