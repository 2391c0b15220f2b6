"""One process of a run, and its parts: each is built when it is first needed, and only once.

What needs another part builds that first. So the strategy comes first, because TensorFlow fixes its
devices and its cluster at the first operation; then the batch sizes, which need the number of
replicas; then, in the strategy's scope, everything that holds variables.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import tensorflow as tf

from trainer.cluster.environment import default_threads
from trainer.cluster.fault_injection import Faults
from trainer.cluster.messages import Channel
from trainer.cluster.spec import BESIDE, Cluster
from trainer.config import batch_sizes
from trainer.config.batch_sizes import BatchSizes
from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.engine.adapted_layers import AdaptedLayers
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.asynchronous.async_loops import AsyncLoops, ChunkScheduler
from trainer.engine.graph.checks.graph_check import GraphCheck
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.split_loops import Loops
from trainer.engine.graph.placement.layer_placement import (
    LayerPlacement,
    compute_on_devices,
    draft_variables,
    place_layers,
    variables_on,
)
from trainer.engine.graph.placement.step_devices import no_devices_for_variables
from trainer.engine.graph.randomness.draws import convert_draws
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.state.variables import read_from_first_replica
from trainer.engine.graph.state.weight_paths import freeze_layers
from trainer.engine.graph.step.grouped_optimizer import bind_groups
from trainer.engine.graph.step.metric_sums import metric_names, num_sums
from trainer.engine.graph.step.update_check import DivergenceMonitor
from trainer.engine.plan import Plan, make_plan
from trainer.engine.process_group import ProcessGroup
from trainer.engine.reporter import ResultLines
from trainer.logical_devices import groups_of
from trainer.protocols import (
    CallbackDefaults,
    Dataset,
    DatasetDefaults,
    LoopDefaults,
    Metric,
    Task,
    names_of,
    with_defaults,
)
from trainer.runs import provenance
from trainer.runs.state_memory import MemoryFiles
from trainer.strategies import devices
from trainer.strategies.compatibility import may_be_keras3
from trainer.strategies.one_device import OneDevice
from trainer.strategies.select import select_strategy
from trainer.strategies.strategy import Strategy
from trainer.summaries.profiler import boundary_steps
from trainer.worker import checks
from trainer.worker.dataset import build_dataset
from trainer.worker.task_parts import Parts


@dataclass(eq=False, repr=False)
class Run:
    """One process of a run.

    Each part raises a ConfigError of an option that is wrong, and of an object that lacks a member.

    Attributes:
        run_dir: the run directory; if it does not exist, nothing is kept there.
        memory_files: where its state outlives it; None: nowhere.
        stand_by: waits until this process takes part in the run; until then another attempt does,
            and it must leave the run directory alone. None: it takes part from its start.
    """

    experiment: Experiment
    run_dir: Path
    channel: Channel
    cluster: Cluster = field(default_factory=Cluster)
    stop_requested: Callable[[], bool] = lambda: False
    save_requested: Callable[[], bool] = lambda: False
    memory_files: MemoryFiles | None = None
    stand_by: Callable[[], object] | None = None

    @cached_property
    def resolved_strategy(self) -> tuple[Strategy, str | None]:
        """The strategy, and a line with the reason if it was chosen."""
        return select_strategy(self.experiment).resolve(self.cluster, devices.count_gpus)

    @property
    def strategy(self) -> Strategy:
        return self.resolved_strategy[0]

    @cached_property
    def faults(self) -> Faults:
        """The faults that this process injects."""
        configured = (self.experiment.trains and self.experiment.fault) or {}
        count_no_steps = self.strategy.service_jobs | BESIDE
        return Faults(configured, self.run_dir, self.cluster, self.channel, count_no_steps)

    @cached_property
    def tf_strategy(self) -> tf.distribute.Strategy:
        """TensorFlow's strategy: nothing may have used TensorFlow's devices before.

        It waits for the other processes of the cluster.
        """
        experiment, strategy = self.experiment, self.strategy
        if may_be_keras3(experiment):
            with suppress(ImportError):
                # Keras 3 imports it, and its import draws a number, which a first model would lack.
                importlib.import_module("rich.style")
        tf.keras.utils.set_random_seed(experiment.seed)
        if experiment.deterministic:
            tf.config.experimental.enable_op_determinism()
        # What the remapper fuses depends on what is around it, such as the collectives of a layout.
        tf.config.optimizer.set_experimental_options({"remapping": experiment.batch.shards is None})
        devices.set_threads(self.num_threads)
        strategy.warn_secs = experiment.watchdog.stall_secs / 2  # before it is stopped for a stall
        # Both ways: of several runs in one process each has its own setting.
        tf.config.run_functions_eagerly(experiment.eager)
        self.channel.phase("join", 0)
        tf_strategy = strategy.create(self.cluster)
        self.channel.phase("start", 0)
        tf.keras.mixed_precision.set_global_policy(experiment.precision)
        return tf_strategy

    @property
    def num_threads(self) -> int | None:
        """How many threads an operation has; None: TensorFlow's default.

        With shards they are fixed when the run begins: a sum that is divided among more threads is
        rounded otherwise.
        """
        experiment = self.experiment
        if experiment.devices.threads is not None or experiment.batch.shards is None:
            return experiment.devices.threads
        return provenance.read(self.run_dir).get("threads") or default_threads()

    @cached_property
    def group(self) -> ProcessGroup:
        """The processes that run every step together; a chief that schedules steps is alone."""
        members = [] if self.strategy.asynchronous else self.cluster.trainers
        if not members:
            return ProcessGroup(self.tf_strategy)
        index = members.index(self.cluster.process_id)
        is_chief = self.cluster.is_chief
        return ProcessGroup(self.tf_strategy, index, len(members), is_chief=is_chief)

    @cached_property
    def sizes(self) -> BatchSizes:
        """The batch sizes of a step."""
        batch = self.experiment.batch
        num_replicas = self.tf_strategy.num_replicas_in_sync
        if self.experiment.trains:
            before = provenance.num_replicas(self.run_dir)
            batch_sizes.check_same_global_batch(batch, before, num_replicas)
        return batch_sizes.resolve_batch_sizes(batch, num_replicas)

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, or its replacement; building it is collective."""
        is_chief = self.cluster.is_chief
        return build_dataset(self.experiment, self.run_dir, self.channel, self.group, is_chief)

    @cached_property
    def plan(self) -> Plan:
        """The steps at which something is due."""
        experiment = self.experiment
        return make_plan(
            experiment,
            self.dataset.train.num_examples,
            self.sizes.global_size,
            self.faults.stops | boundary_steps(experiment.summary.profile),
            asynchronous=self.strategy.asynchronous,
        )

    @cached_property
    def callbacks(self) -> Mapping[str, CallbackDefaults]:
        callbacks: dict[str, CallbackDefaults] = {}
        with self.tf_strategy.scope():
            for name, node in (self.experiment.callbacks or {}).items():
                key = f"callbacks.{name}"
                callbacks[name] = instantiate(node, key)
                checks.check_callback(key, callbacks[name])
        return callbacks

    @cached_property
    def parts(self) -> Parts:
        """What the task is built from."""
        return self._parts(self.callbacks)

    def _parts(self, callbacks: Mapping[str, CallbackDefaults]) -> Parts:
        experiment, group = self.experiment, self.group
        writes = self.cluster.is_chief
        adapted = AdaptedLayers(self.run_dir, group, adapts=experiment.trains, writes=writes)
        return Parts(
            experiment,
            self.dataset,
            plan=self.plan,
            callbacks=callbacks,
            process_group=group,
            num_parts=self.sizes.global_size // self.sizes.micro,
            adapted=adapted,
        )

    @cached_property
    def placement(self) -> tuple[LayerPlacement, list[int]]:
        """The logical device of each layer that has one, and that of each variable, in order.

        A draft of the task decides, if replicas have several devices.
        """
        groups = groups_of(self.tf_strategy)
        if groups is None:
            return LayerPlacement(), []
        tf.keras.backend.reset_uids()
        with draft_variables(groups) as draft:
            models = self._build_task(self._parts({})).models
            planned = place_layers(models, groups.placement, groups.count, draft.requested)
        # The next task is the one that would have been built alone: the same names and weights.
        tf.keras.backend.reset_uids()
        tf.keras.utils.set_random_seed(self.experiment.seed)
        return planned, draft.devices(planned)

    @cached_property
    def task(self) -> Task:
        """The task, built in the strategy's scope; where replicas have several devices, on all."""
        planned, variable_devices = self.placement
        parts = self.parts
        groups = groups_of(self.tf_strategy)
        read = nullcontext if self.strategy.optimizer_reduces else read_from_first_replica
        with self.tf_strategy.scope(), read():
            if groups is None:
                return self._build_task(parts)
            with variables_on(variable_devices, groups):
                task = self._build_task(parts)
            compute_on_devices(planned.transferred(task.models))
            return task

    def _build_task(self, parts: Parts) -> Task:
        task: Task = instantiate(self.experiment.task, "task")
        checks.check_has("task", task, ["build", "train_step"])
        checks.check_label_kind(task, parts.label_kind)
        checks.check_features(task, parts.dataset, self.experiment)
        with no_devices_for_variables():
            task.build(parts)
        checks.check_built_task(task, parts.dataset)
        parts.check_models()
        return task

    @cached_property
    def state(self) -> TrainState:
        """Every variable, of models, optimizers, callbacks and the engine."""
        experiment, task, dataset = self.experiment, self.task, self.dataset
        with self.tf_strategy.scope():
            checks.check_variables(task, self.tf_strategy)
            freeze_layers(task.models, experiment.train.freeze)
            bind_groups(task.models, task.optimizers)
            self.parts.check_used()
            convert_draws()
            state = TrainState(
                task,
                self.callbacks,
                DivergenceMonitor(experiment.divergence, task.optimizers),
                num_sums=num_sums(task),
                ema_decay=experiment.train.ema_decay,
                mixed_float16=experiment.precision == "mixed_float16",
                num_counts=len(with_defaults(dataset, LoopDefaults).count_names),
            )
        if experiment.env is None and experiment.mode in ("train", "evaluate"):
            checks.check_labels(task, dataset)
            checks.check_classes(task, dataset, (experiment.task or {}).get("loss"))
        return state

    @cached_property
    def loops(self) -> Loops:
        """What makes the compiled loops."""
        check = GraphCheck(
            self.state.trackables,
            self.channel.line,
            in_shards=self.experiment.batch.shards is not None,
        )
        if self.strategy.asynchronous:
            num_workers = len(self.cluster.jobs["worker"])
            scheduler = ChunkScheduler(self.tf_strategy, num_workers)
            return AsyncLoops(self.tf_strategy, scheduler=scheduler, check=check)
        in_order = self.sizes.shards is not None
        outside = self.strategy.input_outside
        return Loops(self.tf_strategy, input_outside=outside, in_order=in_order, check=check)

    @cached_property
    def inference(self) -> Inference:
        """What predicts and evaluates splits with the models."""
        state = self.state
        metrics: dict[str, Metric] = {}
        with tf.device("CPU:0"):  # where their variables are: the devices are the model's
            for name, node in (self.experiment.metrics or {}).items():
                key = f"metrics.{name}"
                metrics[name] = metric = instantiate(node, key)
                checks.check_has(key, metric, names_of(Metric))
        return Inference(
            self.experiment,
            self.run_dir,
            self.channel,
            self.dataset,
            metrics,
            state,
            self.loops,
            self.group,
            self.sizes.global_size,
        )

    @property
    def split(self) -> str:
        """The name of the split that selects: `validation`, or `test` without one.

        That is the test split too where nothing is trained and there is one.
        """
        dataset = self.dataset
        if with_defaults(dataset, DatasetDefaults).validation is None:
            return "test"
        is_used = self.experiment.trains or not dataset.test.num_examples
        return "validation" if is_used else "test"

    def evaluated(self, name: str) -> Source:
        """Return the split `validation` or `test`, in the batches of an evaluation."""
        split = self.dataset.test
        if name == "validation":
            validation = with_defaults(self.dataset, DatasetDefaults).validation
            assert validation is not None
            split = validation
        return Source(split, self.sizes.evaluated, self.tf_strategy.num_replicas_in_sync)

    @cached_property
    def lines(self) -> ResultLines:
        """What makes the lines of a training for the user."""
        return ResultLines(
            self.experiment,
            self.plan.total_steps,
            self.split,
            metric_names(self.task),
            self.inference.directions,
        )


@dataclass(eq=False, repr=False)
class SavedRun(Run):
    """A run for a process that does not train: on one device, for any strategy of the training.

    Its batch sizes are those of the training.

    Attributes:
        num_replicas: of the training; None: as recorded.
    """

    num_replicas: int | None = None

    @cached_property
    def resolved_strategy(self) -> tuple[Strategy, str | None]:
        return OneDevice(), None

    @cached_property
    def group(self) -> ProcessGroup:
        return ProcessGroup(self.tf_strategy)

    @cached_property
    def sizes(self) -> BatchSizes:
        num_replicas = self.num_replicas or provenance.num_replicas(self.run_dir) or 1
        return batch_sizes.resolve_batch_sizes(self.experiment.batch, num_replicas)

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """What restores the checkpoints."""
        return Checkpointer(self.run_dir / "checkpoints", self.state.trackables())
