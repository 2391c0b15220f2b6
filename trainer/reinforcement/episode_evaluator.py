"""Evaluation of a task that acts: the mean return of whole episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.pacing import Stopped
from trainer.engine.process_group import ProcessGroup
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.reinforcement.rollout import EnvironmentGroup, run_episodes


class EpisodeEvaluator:
    """Runs episodes with the greedy policy, in the chief's process; the others wait for it.

    The episodes begin alike in each evaluation: two of them differ by their weights alone.

    Args:
        state: the state whose models act.
        data: makes the environments.
        num_episodes: how many; as many environments are stepped side by side.
        seed: of the environments.
        process_group: the processes that evaluate together.
        channel: receives a heartbeat before each step.
    """

    names = ("return", "episode_length")
    # An episode has neither.
    images: ClassVar[Mapping[str, np.ndarray]] = {}
    texts: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(
        self,
        state: TrainState,
        data: EnvironmentData,
        *,
        num_episodes: int,
        seed: int,
        process_group: ProcessGroup,
        channel: Channel,
    ) -> None:
        self._state = state
        self._data = data
        self._num_episodes = num_episodes
        self._seed = seed
        self._process_group = process_group
        self._channel = channel
        self._act = tf.function(state.task.act_greedily, autograph=False)  # type: ignore[attr-defined]
        self._is_compiled = False

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> dict[str, float]:
        """Return `return` and `episode_length`, the means over all episodes; collective.

        Args:
            stop_requested: whether a stop was requested of this process; the chief's counts.
            enter: called with the phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested; the weights are as before.
        """
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
        metrics: dict[str, float] = json.loads(text)
        return metrics

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

        environments = [self._data.make() for _ in range(self._num_episodes)]
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
