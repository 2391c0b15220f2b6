"""From a configuration to live objects; below it nobody sees a configuration node.

The strategy comes first, because TensorFlow fixes its devices and its cluster at the first operation; then the batch sizes,
which need the number of replicas; then, in the strategy's scope, everything that holds variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import batching, policies, predictions, provenance, refusals
from trainer.channel import Channel
from trainer.cluster import Cluster
from trainer.faults import Faults
from trainer.instantiation import instantiate
from trainer.protocols import Callback, Dataset, Metric, Task
from trainer.schema import Experiment
from trainer.strategies import devices
from trainer.strategies.base import Strategy
from trainer.strategies.one_device import OneDevice

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer import sidecar as sidecar_module
    from trainer.checkpoint import Checkpoints
    from trainer.engine import Engine
    from trainer.evaluation import Evaluator
    from trainer.input import Source
    from trainer.loop import Loops
    from trainer.outputs import Outputs
    from trainer.peers import Peers
    from trainer.policies import Plan
    from trainer.state import TrainState
    from trainer.step import StepOptions


def strategy_of(experiment: Experiment) -> Strategy:
    """Instantiates the strategy group: without TensorFlow, so the parent process may do so too.

    What one device does as well needs no other, whatever the run was trained on. A node among its options becomes a function that
    makes it, for what the node names may need TensorFlow.
    """
    if experiment.mode == "export":
        return OneDevice()
    nodes = {name: value for name, value in experiment.strategy.items() if isinstance(value, Mapping) and "_target_" in value}
    makers = {name: partial(instantiate, node, f"strategy.{name}") for name, node in nodes.items()}
    return instantiate({**experiment.strategy, **makers}, "strategy")


@dataclass(frozen=True)
class _Parts:
    """What a task builds itself from; see `trainer.protocols.Parts`."""

    experiment: Experiment
    dataset: Dataset
    schedule: Callable[[Any], Any]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.input_shape)

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    def model(self) -> tf.keras.Model:
        return instantiate(self.experiment.model, "model", self.input_shape, self.num_classes)

    def optimizer(self) -> tf.keras.optimizers.legacy.Optimizer:
        return instantiate(self.experiment.optimizer, "optimizer", self.schedule, leave_out=("learning_rate",))


def engine(experiment: Experiment, run_dir: Path, channel: Channel, cluster: Cluster | None = None, faults: Faults | None = None) -> Engine:
    """Builds the engine of a run, with all that it needs.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory.
        channel: tells the user.
        cluster: the cluster as this process sees it; None: it is alone.
        faults: what is rehearsed; None: all that is configured.

    Raises:
        ConfigError: something in the configuration that only this machine, the data or the model can tell.
    """
    from trainer.engine import Engine
    from trainer.introduction import opener
    from trainer.ledger import Ledger
    from trainer.pace import Pace
    from trainer.probe import Probe
    from trainer.profiler import Profiler, borders
    from trainer.reporting import Reporter

    cluster = cluster or Cluster()
    faults = faults or Faults(experiment.fault, run_dir, cluster, channel, ())
    how, why = strategy_of(experiment).resolve(cluster, devices.count_gpus)
    if why:
        channel.line(why)
    refusals.check(experiment, how, cluster)
    strategy = _start(experiment, how, cluster, channel)
    peers = _peers(how, strategy, cluster)
    if experiment.mode == "train":
        batching.require_same_global(experiment.batch, provenance.num_replicas(run_dir), strategy.num_replicas_in_sync)
    sizes = batching.resolve(experiment.batch, strategy.num_replicas_in_sync)
    dataset: Dataset = instantiate(experiment.dataset, "dataset")
    stops = faults.stops | borders(experiment.summary.profile)
    plan = policies.plan_of(experiment, dataset.train.num_examples, sizes.global_size, stops)
    schedule, task, state = _learner(experiment, strategy, dataset, plan, sizes)
    refusals.check(experiment, how, cluster, task.models.values())
    source, test = _sources(dataset, sizes, experiment.seed)
    loops = _loops(how, strategy, cluster)
    options = _step_options(experiment, how, state, sizes)
    parts = {"state": state, "options": options, "schedule": schedule, "seed": experiment.seed, "poison": _poison(strategy, faults)}
    if cluster.is_chief:
        provenance.complete(run_dir, devices.names(), sizes.num_replicas, plan.total_steps)
    _tell(channel, sizes, plan)
    shared: dict[str, Any] = {"plan": plan, "state": state, "loop": loops.train(task, dataset, source, **parts)}
    shared |= {"channel": channel, "peers": peers, "faults": faults}
    predicted = replace(test, split=predictions.split_of(experiment, dataset))
    outputs = _outputs(state, loops, dataset, predicted, peers, channel)
    reporter = Reporter(
        **shared,
        evaluator=_evaluator(experiment, run_dir, dataset, state, loops, test, outputs, peers, channel),
        open_writers=opener(experiment, run_dir, task, channel, writes=cluster.is_chief),
        ledger=Ledger(run_dir, writes=cluster.is_chief),
        global_size=sizes.global_size,
        probe=Probe(shared["loop"], options, plan, dataset.input_shape) if plan.histograms or plan.images else None,
        profiler=Profiler(experiment.summary.profile, run_dir / "events" / "train", channel) if cluster.is_chief else None,
    )
    checkpoints = _checkpoints(experiment, run_dir, state, peers, faults)
    pace = Pace(experiment.train.steps_per_loop)
    return Engine(**shared, run_dir=run_dir, reporter=reporter, outputs=outputs, checkpoints=checkpoints, pace=pace)


def _tell(channel: Channel, sizes: batching.BatchSizes, plan: Plan) -> None:
    channel.line(f"Number of devices: {sizes.num_replicas}")
    epochs = plan.epochs.completed(plan.total_steps)
    length = f", {epochs} epoch{'s' if epochs > 1 else ''}" if epochs else ""
    channel.line(f"Batch: {sizes}; {plan.total_steps} steps{length}")


def sidecar(experiment: Experiment, run_dir: Path, channel: Channel, cluster: Cluster) -> sidecar_module.Parts:
    """Builds what evaluates the checkpoints of a run beside its training: on one device, whatever the run trains on.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory, in which the training has begun.
        channel: tells the user.
        cluster: which process this is.

    Raises:
        ConfigError: as `engine` does.
    """
    import tensorflow as tf

    from trainer.input import Source
    from trainer.loop import Loops
    from trainer.peers import Peers
    from trainer.sidecar import Parts

    if cluster.source == "local":
        # The training is on the same machine, and takes all memory of its GPUs.
        tf.config.set_visible_devices([], "GPU")
    strategy = _start(experiment, OneDevice(), cluster, channel)
    dataset, plan, state, checkpoints = _saved(experiment, run_dir, strategy)
    test = Source(dataset.test, _sizes(experiment, run_dir).per_replica, num_replicas=1)
    loops, peers = Loops(strategy, input_outside=OneDevice.input_outside), Peers(strategy)
    outputs = _outputs(state, loops, dataset, test, peers, channel)
    return Parts(checkpoints, _evaluator(experiment, run_dir, dataset, state, loops, test, outputs, peers, channel), plan.epochs)


def learned(experiment: Experiment, run_dir: Path, channel: Channel) -> tuple[Dataset, TrainState, Checkpoints]:
    """Builds what a run has saved, on one device, whatever it was trained on: the data, the state, and what restores it."""
    dataset, _, state, checkpoints = _saved(experiment, run_dir, _start(experiment, OneDevice(), Cluster(), channel))
    return dataset, state, checkpoints


def _saved(experiment: Experiment, run_dir: Path, strategy: tf.distribute.Strategy) -> tuple[Dataset, Plan, TrainState, Checkpoints]:
    from trainer.checkpoint import Checkpoints

    sizes = _sizes(experiment, run_dir)
    dataset: Dataset = instantiate(experiment.dataset, "dataset")
    plan = policies.plan_of(experiment, dataset.train.num_examples, sizes.global_size)
    _, _, state = _learner(experiment, strategy, dataset, plan, sizes)
    return dataset, plan, state, Checkpoints(run_dir / "checkpoints", state.trackables())


def _sizes(experiment: Experiment, run_dir: Path) -> batching.BatchSizes:
    """Gives the batch sizes of a training that other processes did, or do."""
    return batching.resolve(experiment.batch, provenance.num_replicas(run_dir) or 1)


def _start(experiment: Experiment, how: Strategy, cluster: Cluster, channel: Channel) -> tf.distribute.Strategy:
    """Starts the strategy: nothing may have used TensorFlow's devices before, and nothing can go without it."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(experiment.seed)
    if experiment.deterministic:
        tf.config.experimental.enable_op_determinism()
    channel.phase("join", 0)
    strategy = how.start(cluster)
    channel.phase("start", 0)
    tf.keras.mixed_precision.set_global_policy(experiment.precision)
    return strategy


def _learner(
    experiment: Experiment, strategy: tf.distribute.Strategy, dataset: Dataset, plan: Plan, sizes: batching.BatchSizes
) -> tuple[Callable[[Any], Any], Task, TrainState]:
    """Makes everything that holds variables, and the learning rate that the optimizers follow."""
    with strategy.scope():
        made = experiment.callbacks or {}
        callbacks: dict[str, Callback] = {name: instantiate(node, f"callbacks.{name}") for name, node in made.items()}
        schedule = _schedule(experiment, plan.total_steps, sizes.global_size, callbacks)
        task: Task = instantiate(experiment.task, "task")
        task.build(_Parts(experiment, dataset, schedule))
        return schedule, task, _state(experiment, task, callbacks)


def _sources(dataset: Dataset, sizes: batching.BatchSizes, seed: int) -> tuple[Source, Source]:
    from trainer.input import SampleOrder, Source

    order = SampleOrder(dataset.train.num_examples, seed)
    train = Source(dataset.train, sizes.per_replica, sizes.num_replicas, order, dataset.num_draws)
    return train, Source(dataset.test, sizes.per_replica, sizes.num_replicas)


def _loops(how: Strategy, strategy: tf.distribute.Strategy, cluster: Cluster) -> Loops:
    from trainer.chunks import ChunkedLoops, Workers
    from trainer.loop import Loops

    if how.asynchronous:
        return ChunkedLoops(strategy, Workers(strategy, len(cluster.jobs["worker"])))
    return Loops(strategy, input_outside=how.input_outside)


def _outputs(state: TrainState, loops: Loops, dataset: Dataset, source: Source, peers: Peers, channel: Channel) -> Outputs | None:
    """Makes what predicts a split; None: the task predicts nothing."""
    from trainer.outputs import Outputs

    if not hasattr(state.task, "predict_step"):
        return None
    class_names = getattr(dataset, "class_names", None) or ()
    return Outputs(state, loops.predict(state.task, dataset, source), source, peers, channel, class_names)


def _evaluator(
    experiment: Experiment,
    run_dir: Path,
    dataset: Dataset,
    state: TrainState,
    loops: Loops,
    source: Source,
    outputs: Outputs | None,
    peers: Peers,
    channel: Channel,
) -> Evaluator:
    import tensorflow as tf

    from trainer.evaluation import Evaluator
    from trainer.measures import measures

    with tf.device("CPU:0"):  # what variables a metric has: the devices are the model's
        metrics: dict[str, Metric] = {name: instantiate(node, f"metrics.{name}") for name, node in (experiment.metrics or {}).items()}
    further = measures(experiment, metrics, state.task, dataset, outputs, peers, run_dir)
    return Evaluator(state, loops.evaluate(state.task, dataset, source), source, peers, channel, further)


def _peers(how: Strategy, strategy: tf.distribute.Strategy, cluster: Cluster) -> Peers:
    """Gives the processes that run every step together; a chief that hands out steps does so alone."""
    from trainer.peers import Peers

    together = [] if how.asynchronous else cluster.trainers
    return Peers(strategy, together.index(cluster.task), len(together), is_chief=cluster.is_chief) if together else Peers(strategy)


def _checkpoints(experiment: Experiment, run_dir: Path, state: TrainState, peers: Peers, faults: Faults) -> Checkpoints:
    from trainer.checkpoint import Checkpoints

    return Checkpoints(
        run_dir / "checkpoints",
        state.trackables(),
        policies.keep_policies(experiment.checkpoint),
        peers,
        background=experiment.checkpoint.async_write,
        saved_once=run_dir / ".saved",
        before_commit=partial(faults.reached, "save"),
    )


def _step_options(experiment: Experiment, how: Strategy, state: TrainState, sizes: batching.BatchSizes) -> StepOptions:
    from trainer.step import StepOptions

    return StepOptions(
        sizes.global_size,
        sizes.accumulate,
        experiment.train.clip_norm,
        experiment.jit,
        state.loss_scale,
        optimizer_reduces=how.optimizer_reduces,
        exchange=how.exchange(state.peak),
        # Steps that are handed out have no numbers in common: their sums are looked at when they have come back.
        guard=None if how.asynchronous else state.guard,
    )


def _poison(strategy: tf.distribute.Strategy, faults: Faults) -> tf.Variable | None:
    """Makes what a step asks whether its features are to be no numbers; in no checkpoint, for that happens once."""
    import tensorflow as tf

    if not faults.poisons:
        return None
    with strategy.scope():
        poison = tf.Variable(False, trainable=False, name="poison")
    faults.poison = poison.assign
    return poison


def _schedule(experiment: Experiment, total_steps: int, global_size: int, callbacks: Mapping[str, Callback]) -> Callable[[Any], Any]:
    """Builds the learning rate, scaled linearly with the batch if a reference batch is given (Goyal et al. 2017)."""
    from trainer.schedules import adjusted

    reference = experiment.schedule["reference_batch"]
    peak = experiment.optimizer["learning_rate"] * (global_size / reference if reference else 1.0)
    schedule = instantiate(experiment.schedule, "schedule", peak, total_steps, leave_out=("reference_batch",))
    return adjusted(
        schedule, [callback.adjust_learning_rate for callback in callbacks.values() if hasattr(callback, "adjust_learning_rate")]
    )


def _state(experiment: Experiment, task: Task, callbacks: Mapping[str, Callback]) -> TrainState:
    from trainer import randomness
    from trainer.guard import Guard
    from trainer.state import TrainState

    offset = 0
    for model in task.models.values():
        offset += randomness.make_stateless(model, offset)
    return TrainState(
        task,
        callbacks,
        Guard(experiment.divergence, task.optimizers),
        num_metrics=len(task.metrics),
        ema_decay=experiment.train.ema_decay,
        mixed_float16=experiment.precision == "mixed_float16",
    )
