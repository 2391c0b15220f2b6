"""Everything that holds variables: the task, its models and optimizers, callbacks, the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.cluster.environment import default_threads
from trainer.config.batch_sizes import BatchSizes
from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.engine.graph.divergence import DivergenceMonitor
from trainer.engine.graph.placement import no_devices_for_variables
from trainer.engine.graph.random_layers import make_stateless
from trainer.engine.graph.state import TrainState
from trainer.engine.graph.variables import read_from_first_replica
from trainer.engine.plan import Plan
from trainer.protocols import Callback, Dataset, Task
from trainer.runs import provenance
from trainer.schedules.base import adjust
from trainer.strategies import devices
from trainer.strategies.base import Strategy
from trainer.worker import members
from trainer.worker.context import WorkerContext

Schedule: TypeAlias = Callable[[Any], Any]
"""The learning rate, float32 scalar, of a step, int64 scalar."""


@dataclass(frozen=True)
class TaskParts:
    """What a task is built from; see `trainer.protocols.TaskParts`."""

    experiment: Experiment
    dataset: Dataset
    schedule: Schedule

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.input_shape)

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    def model(self) -> tf.keras.Model:
        return instantiate(self.experiment.model, "model", self.input_shape, self.num_classes)

    def optimizer(self) -> tf.keras.optimizers.legacy.Optimizer:
        return instantiate(
            self.experiment.optimizer, "optimizer", self.schedule, leave_out=("learning_rate",)
        )


@dataclass(frozen=True)
class Learner:
    """What is trained, on what, and for how long.

    Attributes:
        dataset: the data.
        plan: when things happen.
        sizes: the batch sizes of the training.
        schedule: the learning rate of a step.
        state: every variable; also the task.
    """

    dataset: Dataset
    plan: Plan
    sizes: BatchSizes
    schedule: Schedule
    state: TrainState

    @property
    def task(self) -> Task:
        """The task, which has been built."""
        return self.state.task


def create_strategy(context: WorkerContext, strategy: Strategy) -> tf.distribute.Strategy:
    """Create TensorFlow's strategy: nothing may have used TensorFlow's devices before.

    It waits for the other processes of the cluster.

    Raises:
        ConfigError: it cannot work on this machine's devices.
    """
    experiment = context.experiment
    tf.keras.utils.set_random_seed(experiment.seed)
    if experiment.deterministic:
        tf.config.experimental.enable_op_determinism()
    devices.set_threads(num_threads(context))
    context.channel.phase("join", 0)
    tf_strategy = strategy.create(context.cluster)
    context.channel.phase("start", 0)
    tf.keras.mixed_precision.set_global_policy(experiment.precision)
    return tf_strategy


def num_threads(context: WorkerContext) -> int | None:
    """Return how many threads an operation has; None: TensorFlow's default.

    With shards they are fixed when the run begins: a sum that is divided among more threads is
    rounded otherwise.
    """
    experiment = context.experiment
    if experiment.devices.threads is not None or experiment.batch.shards is None:
        return experiment.devices.threads
    return provenance.num_threads(context.run_dir) or default_threads()


def build_dataset(experiment: Experiment) -> Dataset:
    """Build the configured dataset.

    Raises:
        ConfigError: an option or a file is wrong, or the dataset lacks a member.
    """
    dataset: Dataset = instantiate(experiment.dataset, "dataset")
    members.check_dataset(dataset)
    return dataset


def build_learner(
    experiment: Experiment,
    tf_strategy: tf.distribute.Strategy,
    dataset: Dataset,
    plan: Plan,
    sizes: BatchSizes,
) -> Learner:
    """Build all that holds variables, and the learning rate that the optimizers follow.

    Raises:
        ConfigError: an option is wrong, or the task or a callback lacks a member.
    """
    with tf_strategy.scope():
        callbacks = _callbacks(experiment)
        schedule = _schedule(experiment, plan.total_steps, sizes.global_size, callbacks)
        task: Task = instantiate(experiment.task, "task")
        members.check_task(task)
        read_from_one = read_from_first_replica if sizes.shards is not None else nullcontext
        with no_devices_for_variables(), read_from_one():
            task.build(TaskParts(experiment, dataset, schedule))
        members.check_built_task(task)
        return Learner(dataset, plan, sizes, schedule, _state(experiment, task, callbacks))


def _callbacks(experiment: Experiment) -> dict[str, Callback]:
    callbacks: dict[str, Callback] = {}
    for name, node in (experiment.callbacks or {}).items():
        key = f"callbacks.{name}"
        callbacks[name] = instantiate(node, key)
        members.check_callback(key, callbacks[name])
    return callbacks


def _schedule(
    experiment: Experiment, total_steps: int, global_size: int, callbacks: Mapping[str, Callback]
) -> Schedule:
    """Build the learning rate, adjusted by the callbacks that do so.

    It is scaled linearly with the batch if a reference batch is set (Goyal et al. 2017).
    """
    reference = experiment.schedule["reference_batch"]
    peak = experiment.optimizer["learning_rate"] * (global_size / reference if reference else 1.0)
    schedule = instantiate(
        experiment.schedule, "schedule", peak, total_steps, leave_out=("reference_batch",)
    )
    adjustments = [
        callback.adjust_learning_rate
        for callback in callbacks.values()
        if hasattr(callback, "adjust_learning_rate")
    ]
    return adjust(schedule, adjustments)


def _state(experiment: Experiment, task: Task, callbacks: Mapping[str, Callback]) -> TrainState:
    offset = 0
    for model in task.models.values():
        offset += make_stateless(model, offset)
    return TrainState(
        task,
        callbacks,
        DivergenceMonitor(experiment.divergence, task.optimizers),
        num_metrics=len(task.metrics),
        ema_decay=experiment.train.ema_decay,
        mixed_float16=experiment.precision == "mixed_float16",
    )
