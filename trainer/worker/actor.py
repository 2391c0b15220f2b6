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
from typing import NoReturn

import numpy as np
import tensorflow as tf

from trainer.acting import Acts
from trainer.cluster.messages import Channel
from trainer.engine.environment_data import EnvironmentData
from trainer.engine.learner_client import Finished, LearnerClient
from trainer.engine.learner_server import Closed
from trainer.engine.plan import make_plan
from trainer.engine.process_group import ProcessGroup
from trainer.engine.rollout import EnvironmentGroup, unroll
from trainer.errors import ConfigError
from trainer.protocols import Task
from trainer.runs.directory import read_result
from trainer.strategies import devices
from trainer.strategies.one_device import OneDevice
from trainer.worker.build_loop import acting_task
from trainer.worker.build_model import build_dataset, create_strategy
from trainer.worker.build_task import TaskBuilder
from trainer.worker.context import WorkerContext
from trainer.worker.task_parts import Parts

_POLL_SECS = 0.25


class _Stopped(Exception):
    """A stop was requested of this process."""


def run(context: WorkerContext, stop: Callable[[], bool]) -> bool:
    """Act until the training is over.

    Args:
        context: this process.
        stop: whether a stop was requested of it.

    Returns:
        Whether the training is finished; if not, it was stopped on request, or this process was.

    Raises:
        ConfigError: the environment, or a task that does not act.
    """
    tf.config.set_visible_devices([], "GPU")  # they are the learner's
    strategy = OneDevice()
    tf_strategy = create_strategy(context, strategy)
    devices.set_threads(1)  # one core for each actor: its networks are small
    data = build_dataset(context.experiment)
    assert isinstance(data, EnvironmentData)
    task = _build_task(context, tf_strategy, data)
    actor = Actor(acting_task(task), task, data, context, stop)
    try:
        return actor.run()
    except _Stopped:
        return False
    finally:
        actor.close()


def _build_task(
    context: WorkerContext, tf_strategy: tf.distribute.Strategy, data: EnvironmentData
) -> Task:
    experiment = context.experiment
    plan = make_plan(experiment, 1, experiment.batch.global_size or 1)
    parts = Parts(
        experiment, data, plan=plan, callbacks={}, process_group=ProcessGroup(tf_strategy)
    )
    with tf_strategy.scope():
        return TaskBuilder(experiment, tf_strategy).build(parts)


class Actor:
    """Steps the environments of one process.

    Args:
        acts: the task's policy.
        task: the same task, with the models whose weights the learner sends.
        data: makes the environments.
        context: this process.
        stop: whether a stop was requested of it.
    """

    def __init__(
        self,
        acts: Acts,
        task: Task,
        data: EnvironmentData,
        context: WorkerContext,
        stop: Callable[[], bool],
    ) -> None:
        self._length = acts.unroll_length
        self._act = tf.function(acts.act, autograph=False)
        self._variables = [
            variable for name in acts.acting_models for variable in task.models[name].variables
        ]
        self._data = data
        self._context = context
        self._channel: Channel = context.channel
        self._stop = stop
        self._client = LearnerClient(context.run_dir, self._on_wait)
        self._group: EnvironmentGroup | None = None
        self._seeds = np.random.default_rng()
        self._unrolls = 0
        self._phase = "connect"

    def run(self) -> bool:
        """Act until the training is over; in a local cluster wait to be dismissed.

        Returns:
            Whether the training is finished.
        """
        try:
            self._act_for_ever()
        except Closed as over:
            while self._context.cluster.is_local:
                self._phase = "wait"
                self._on_wait()
                time.sleep(_POLL_SECS)
            return isinstance(over, Finished)

    def _act_for_ever(self) -> NoReturn:
        version = self._receive(*self._client.exchange({}, -1))
        self._begin(version)
        assert self._group is not None
        while True:
            self._phase = "act"
            self._on_wait()
            arrays = unroll(self._group, self._policy, self._length)
            self._unrolls += 1
            self._on_wait()
            version = self._receive(*self._client.exchange(arrays, version))

    def close(self) -> None:
        """Close the connection and the environments."""
        self._client.close()
        if self._group is not None:
            self._group.close()

    def _begin(self, version: int) -> None:
        """Make the environments.

        An actor that replaces another one meets other episodes: the version is in its seed.
        """
        experiment = self._context.experiment
        index = self._context.cluster.process_id.index
        sequence = np.random.SeedSequence([experiment.seed, index, version])
        self._seeds = np.random.default_rng(sequence)
        count = experiment.actors.environments
        self._group = EnvironmentGroup(
            [self._data.make() for _ in range(count)], int(self._seeds.integers(2**31))
        )

    def _receive(self, version: int, weights: Sequence[np.ndarray]) -> int:
        if len(weights) not in (0, len(self._variables)):
            raise ConfigError(
                f"task: the learner sends {len(weights)} weights, and this actor has "
                f"{len(self._variables)}; start all processes with the same command"
            )
        for variable, value in zip(self._variables, weights, strict=False):
            variable.assign(value)
        return version

    def _policy(self, observations: np.ndarray) -> Mapping[str, np.ndarray]:
        seed = tf.constant(self._seeds.integers(2**62, size=2), tf.int64)
        outputs = self._act(tf.constant(observations), seed)
        return {name: output.numpy() for name, output in outputs.items()}

    def _on_wait(self) -> None:
        """Send a sign of life; called while the learner has not answered too.

        Raises:
            _Stopped: a stop was requested.
        """
        self._channel.phase(self._phase, self._unrolls)
        if self._stop():
            raise _Stopped
        is_over = not self._context.cluster.is_local and self._phase == "connect"
        if is_over and read_result(self._context.run_dir, self._context.experiment) is not None:
            raise Finished
