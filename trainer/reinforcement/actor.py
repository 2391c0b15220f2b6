"""An actor: a process that steps environments with the newest weights.

until the training is over
    get the newest weights
    step each environment `unroll_length` times
    send the unrolls

It keeps nothing, so it may be lost and replaced at any moment, and the learner too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from trainer.protocols import Task
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.reinforcement.learner_client import Finished, LearnerClient
from trainer.reinforcement.learner_server import Closed
from trainer.reinforcement.published_policy import PublishedPolicy
from trainer.reinforcement.rollout import EnvironmentGroup, unroll
from trainer.runs.directory import read_result

_POLL_SECS = 0.25


class _Stopped(Exception):
    """A stop was requested of this process."""


def act(place: Any, data: EnvironmentData, task: Task, stop: Callable[[], bool]) -> bool:
    """Act until the training is over.

    Args:
        place: this process, a `trainer.worker.context.WorkerContext`.
        task: the task, on one device of this process.

    Returns:
        Whether the training is finished; if not, it was stopped on request, or this process was.

    Raises:
        ConfigError: the task does not act.
    """
    actor = Actor(PublishedPolicy(task, data.env), data, place, stop)
    try:
        return actor.run()
    except _Stopped:
        return False
    finally:
        actor.close()


class Actor:
    """Steps the environments of one process.

    Args:
        policy: the task's, with the weights that the learner sends.
        place: this process, a `trainer.worker.context.WorkerContext`.
    """

    def __init__(
        self,
        policy: PublishedPolicy,
        data: EnvironmentData,
        place: Any,
        stop: Callable[[], bool],
    ) -> None:
        self._policy = policy
        self._data = data
        self._place = place
        self._channel = place.channel
        self._stop = stop
        self._client = LearnerClient(place.run_dir, self._on_wait)
        self._group: EnvironmentGroup | None = None
        count = place.experiment.actors.environments
        self._exploration = np.arange(1, count + 1, dtype=np.float32) / np.float32(count)
        self._seeds = np.random.default_rng()
        self._version = -1
        self._unrolls = 0
        self._phase = "connect"

    def run(self) -> bool:
        """Act until the training is over (locally: until dismissed); return whether it finished."""
        try:
            self._act_for_ever()
        except Closed as over:
            while self._place.cluster.is_local:
                self._phase = "wait"
                self._on_wait()
                time.sleep(_POLL_SECS)
            return isinstance(over, Finished)

    def _act_for_ever(self) -> NoReturn:
        self._exchange({})
        self._group = group = self._environments()
        while True:
            self._phase = "act"
            self._on_wait()
            arrays = unroll(group, self._act, self._policy.unroll_length)
            self._unrolls += 1
            self._on_wait()
            self._exchange(arrays)

    def _exchange(self, unrolls: Mapping[str, np.ndarray]) -> None:
        """Send unrolls, and take newer weights."""
        self._version, weights = self._client.exchange(unrolls, self._version)
        if weights:
            self._policy.assign(weights)

    def close(self) -> None:
        """Close the connection and the environments."""
        self._client.close()
        if self._group is not None:
            self._group.close()

    def _environments(self) -> EnvironmentGroup:
        """Return new environments, and set the seeds.

        An actor that replaces another one meets other episodes: the version is in its seed.
        """
        experiment = self._place.experiment
        index = self._place.cluster.process_id.index
        sequence = np.random.SeedSequence([experiment.seed, index, self._version])
        self._seeds = np.random.default_rng(sequence)
        count = experiment.actors.environments
        return EnvironmentGroup(
            [self._data.make() for _ in range(count)], int(self._seeds.integers(2**31))
        )

    def _act(self, observations: np.ndarray) -> Mapping[str, np.ndarray]:
        seed = self._seeds.integers(2**62, size=2)
        return self._policy.act(observations, seed, self._exploration)

    def _on_wait(self) -> None:
        """Send a sign of life; called while the learner has not answered too.

        Raises:
            _Stopped: a stop was requested.
        """
        self._channel.phase(self._phase, self._unrolls)
        if self._stop():
            raise _Stopped
        is_alone = not self._place.cluster.is_local and not self._client.is_connected
        if is_alone and read_result(self._place.run_dir, self._place.experiment) is not None:
            raise Finished
