"""An actor: a process that steps environments with the newest weights.

until the training is over
    get the newest weights
    step each environment `unroll_length` times
    send the unrolls

It keeps nothing, so it may be lost and replaced at any moment, and the learner too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.protocols import EnvSpec, Task
from trainer.reinforcement.connection import Closed, Finished, LearnerClient
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.reinforcement.rollout import EnvironmentGroup, acting_task, policy_signature, unroll
from trainer.runs.directory import read_result

_POLL_SECS = 0.25


class PublishedPolicy:
    """A task's policy with its own weights: the newest that were assigned."""

    def __init__(self, task: Task, spec: EnvSpec) -> None:
        acts = acting_task(task)
        self.unroll_length = acts.unroll_length
        self._variables = [
            variable for name in acts.acting_models for variable in task.models[name].variables
        ]
        self._act = tf.function(acts.act, autograph=False).get_concrete_function(
            *policy_signature(spec)
        )

    def assign(self, weights: Sequence[np.ndarray]) -> None:
        """Take other weights.

        Raises:
            ConfigError: they are those of another model.
        """
        if len(weights) != len(self._variables):
            raise ConfigError(
                f"task: the learner sends {len(weights)} weights, and this actor has "
                f"{len(self._variables)}; start all processes with the same command"
            )
        for variable, value in zip(self._variables, weights, strict=True):
            variable.assign(value)

    def act(
        self, observations: np.ndarray, seed: np.ndarray, exploration: np.ndarray
    ) -> dict[str, np.ndarray]:
        outputs = self._act(
            tf.constant(observations), tf.constant(seed, tf.int64), tf.constant(exploration)
        )
        return {name: output.numpy() for name, output in outputs.items()}


class _Stopped(Exception):
    """A stop was requested of this process."""


@dataclass(eq=False, repr=False)
class Actor:
    """Steps the environments of one process."""

    policy: PublishedPolicy
    data: EnvironmentData
    _: KW_ONLY
    experiment: Experiment
    run_dir: Path
    channel: Channel
    cluster: Cluster
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self._client = LearnerClient(self.run_dir, self._on_wait)
        self._group: EnvironmentGroup | None = None
        count = self.experiment.actors.environments
        self._exploration = np.arange(1, count + 1, dtype=np.float32) / np.float32(count)
        self._seeds = np.random.default_rng()
        self._version = -1
        self._unrolls = 0
        self._phase = "connect"

    def run(self) -> bool:
        """Act until the training is over (locally: until dismissed); return whether it finished.

        If not, it was stopped on request, or this process was.
        """
        try:
            with suppress(_Stopped):
                return self._act_to_the_end()
            return False
        finally:
            self._client.close()
            if self._group is not None:
                self._group.close()

    def _act_to_the_end(self) -> bool:
        try:
            self._act_for_ever()
        except Closed as over:
            while self.cluster.is_local:
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
            arrays = unroll(group, self._act, self.policy.unroll_length)
            self._unrolls += 1
            self._on_wait()
            self._exchange(arrays)

    def _exchange(self, unrolls: Mapping[str, np.ndarray]) -> None:
        """Send unrolls, and take newer weights."""
        self._version, weights = self._client.exchange(unrolls, self._version)
        if weights:
            self.policy.assign(weights)

    def _environments(self) -> EnvironmentGroup:
        """Return new environments, and set the seeds.

        An actor that replaces another one has other episodes: the version is in its seed.
        """
        index = self.cluster.process_id.index
        sequence = np.random.SeedSequence([self.experiment.seed, index, self._version])
        self._seeds = np.random.default_rng(sequence)
        environments = [self.data.make() for _ in self._exploration]
        return EnvironmentGroup(environments, int(self._seeds.integers(2**31)))

    def _act(self, observations: np.ndarray) -> Mapping[str, np.ndarray]:
        seed = self._seeds.integers(2**62, size=2)
        return self.policy.act(observations, seed, self._exploration)

    def _on_wait(self) -> None:
        """Send a sign of life; called while the learner has not answered too."""
        self.channel.phase(self._phase, self._unrolls)
        if self.stop():
            raise _Stopped
        is_alone = not self.cluster.is_local and not self._client.is_connected
        if is_alone and read_result(self.run_dir, self.experiment) is not None:
            raise Finished
