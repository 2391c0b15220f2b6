"""Everything that holds variables: the task, its models and optimizers, callbacks, the state."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

import tensorflow as tf

from trainer.cluster.environment import default_threads
from trainer.config.batch_sizes import BatchSizes
from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.engine.adapted_layers import AdaptedLayers
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.placement.layer_placement import LayerPlacement, place_layers
from trainer.engine.graph.placement.placed_model import (
    compute_on_devices,
    draft_variables,
    variables_on,
)
from trainer.engine.graph.placement.step_devices import no_devices_for_variables
from trainer.engine.graph.randomness.random_functions import convert_draws
from trainer.engine.graph.randomness.random_layers import layers_of, make_stateless
from trainer.engine.graph.state.freezing import freeze_layers
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.state.variables import read_from_first_replica
from trainer.engine.graph.step.divergence import DivergenceMonitor
from trainer.engine.graph.step.grouped_optimizer import bind_groups
from trainer.engine.graph.step.metric_sums import num_sums
from trainer.engine.plan import Plan, make_plan
from trainer.engine.process_group import ProcessGroup
from trainer.logical_devices import groups_of
from trainer.protocols import (
    CallbackDefaults,
    Dataset,
    LoopDefaults,
    Metric,
    Task,
    names_of,
    with_defaults,
)
from trainer.runs import provenance
from trainer.strategies import devices
from trainer.strategies.compatibility import may_be_keras3
from trainer.strategies.strategy import Strategy
from trainer.worker.building import data_checks, members
from trainer.worker.building.task_parts import Parts, Schedule
from trainer.worker.context import WorkerContext


@dataclass(frozen=True)
class Learner:
    """What is trained, on what, and for how long.

    Attributes:
        learning_rates: the learning rate of each optimizer at a step, by its name in the log.
        state: every variable; also the task.
        placement: path of a layer -> logical device; empty if replicas have one device each.
    """

    dataset: Dataset
    plan: Plan
    sizes: BatchSizes
    learning_rates: Mapping[str, Schedule]
    state: TrainState
    placement: Mapping[str, int] = field(default_factory=dict)

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
    if may_be_keras3(experiment):
        with suppress(ImportError):
            # Keras 3 imports it, and its import draws a number, which a first model would lack.
            importlib.import_module("rich.style")
    tf.keras.utils.set_random_seed(experiment.seed)
    if experiment.deterministic:
        tf.config.experimental.enable_op_determinism()
    devices.set_threads(num_threads(context))
    strategy.warn_secs = experiment.watchdog.stall_secs / 2  # before anybody is stopped for it
    # Both ways: of several runs in one process each has its own setting.
    tf.config.run_functions_eagerly(experiment.eager)
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
    return provenance.read(context.run_dir).get("threads") or default_threads()


def build_learner(
    context: WorkerContext,
    strategy: Strategy,
    tf_strategy: tf.distribute.Strategy,
    dataset: Dataset,
    plan: Plan,
    sizes: BatchSizes,
    process_group: ProcessGroup | None = None,
) -> Learner:
    """Build all that holds variables, and the learning rate that the optimizers follow.

    Raises:
        ConfigError: an option is wrong, or the task or a callback lacks a member.
    """
    experiment = context.experiment
    group = process_group or ProcessGroup(tf_strategy)
    builder = TaskBuilder(experiment, tf_strategy)
    builder.draft(_parts(context, dataset, plan, {}, group, sizes))
    with tf_strategy.scope():
        callbacks = _callbacks(experiment)
        parts = _parts(context, dataset, plan, callbacks, group, sizes)
        read_from_one = nullcontext if strategy.optimizer_reduces else read_from_first_replica
        with read_from_one():
            task = builder.build(parts)
        members.check_variables(task, tf_strategy)
        freeze_layers(task.models, experiment.train.freeze)
        bind_groups(task.models, task.optimizers)
        parts.check_used()
        state = _state(experiment, task, dataset, callbacks)
    if experiment.env is None and experiment.mode in ("train", "evaluate"):
        members.check_labels(state.task, dataset)
        data_checks.check_classes(state.task, dataset, (experiment.task or {}).get("loss"))
    return Learner(dataset, plan, sizes, parts.learning_rates, state, builder.placement)


class TaskBuilder:
    """Builds the configured task; where replicas have several devices, on all of them."""

    def __init__(self, experiment: Experiment, tf_strategy: tf.distribute.Strategy) -> None:
        self._experiment = experiment
        self._groups = groups_of(tf_strategy)
        self._planned = LayerPlacement()
        self._devices: list[int] = []

    @property
    def placement(self) -> dict[str, int]:
        """The logical device of each layer that has one, by its path."""
        return self._planned.devices

    def draft(self, parts: Parts) -> None:
        """Decide what goes where, outside the strategy's scope.

        Raises:
            ConfigError: an option is wrong, the task lacks a member, or a layer cannot be placed.
        """
        groups = self._groups
        if groups is None:
            return
        tf.keras.backend.reset_uids()
        with draft_variables(groups) as draft:
            models = self._build(parts).models
            self._planned = place_layers(models, groups.placement, groups.count, draft.requested)
        self._devices = draft.devices(self._planned)
        # The next task is the one that would have been built alone: the same names and weights.
        tf.keras.backend.reset_uids()
        tf.keras.utils.set_random_seed(self._experiment.seed)

    def build(self, parts: Parts) -> Task:
        """Build the task, in the strategy's scope.

        Raises:
            ConfigError: an option is wrong, or the task lacks a member.
        """
        if self._groups is None:
            return self._build(parts)
        with variables_on(self._devices, self._groups):
            task = self._build(parts)
        compute_on_devices(self._planned.transferred(task.models))
        return task

    def _build(self, parts: Parts) -> Task:
        task: Task = instantiate(self._experiment.task, "task")
        members.check_has("task", task, ["build", "train_step"])
        members.check_label_kind(task, parts.label_kind)
        members.check_features(task, parts.dataset, self._experiment)
        with no_devices_for_variables():
            task.build(parts)
        members.check_built_task(task, parts.dataset)
        parts.check_models()
        return task


def build_task(
    context: WorkerContext, tf_strategy: tf.distribute.Strategy, dataset: Dataset
) -> Task:
    """Build a task alone, for what it does besides training.

    Raises:
        ConfigError: an option is wrong.
    """
    experiment = context.experiment
    plan = make_plan(experiment, 1, experiment.batch.global_size or 1)
    parts = _parts(context, dataset, plan, {}, ProcessGroup(tf_strategy))
    with tf_strategy.scope():
        return TaskBuilder(experiment, tf_strategy).build(parts)


def _parts(
    context: WorkerContext,
    dataset: Dataset,
    plan: Plan,
    callbacks: Mapping[str, CallbackDefaults],
    group: ProcessGroup,
    sizes: BatchSizes | None = None,
) -> Parts:
    """Return what a task is built from, with what the run has kept of its adapted layers."""
    experiment = context.experiment
    writes = context.cluster.is_chief
    adapted = AdaptedLayers(context.run_dir, group, adapts=experiment.trains, writes=writes)
    return Parts(
        experiment,
        dataset,
        plan=plan,
        callbacks=callbacks,
        process_group=group,
        num_parts=1 if sizes is None else sizes.global_size // sizes.micro,
        adapted=adapted,
    )


def _callbacks(experiment: Experiment) -> dict[str, CallbackDefaults]:
    callbacks: dict[str, CallbackDefaults] = {}
    for name, node in (experiment.callbacks or {}).items():
        key = f"callbacks.{name}"
        callbacks[name] = instantiate(node, key)
        members.check_callback(key, callbacks[name])
    return callbacks


def _state(
    experiment: Experiment, task: Task, dataset: Dataset, callbacks: Mapping[str, CallbackDefaults]
) -> TrainState:
    convert_draws()
    offset = 0
    for model in (*task.models.values(), layers_of(dataset)):
        offset += make_stateless(model, offset)
    return TrainState(
        task,
        callbacks,
        DivergenceMonitor(experiment.divergence, task.optimizers),
        num_sums=num_sums(task),
        ema_decay=experiment.train.ema_decay,
        mixed_float16=experiment.precision == "mixed_float16",
        num_counts=len(with_defaults(dataset, LoopDefaults).count_names),
    )


def make_inference(
    context: WorkerContext, learner: Learner, loops: Loops, process_group: ProcessGroup
) -> Inference:
    """Return what predicts and evaluates splits with the models of a run.

    Raises:
        ConfigError: an option of a metric is wrong, or it lacks a member.
    """
    metrics: dict[str, Metric] = {}
    with tf.device("CPU:0"):  # where their variables are: the devices are the model's
        for name, node in (context.experiment.metrics or {}).items():
            key = f"metrics.{name}"
            metrics[name] = metric = instantiate(node, key)
            members.check_has(key, metric, names_of(Metric))
    return Inference(
        context.experiment,
        context.run_dir,
        context.channel,
        learner.dataset,
        metrics,
        learner.state,
        loops,
        process_group,
        learner.sizes.global_size,
    )
