"""From a configuration to an engine.

The strategy comes first, because TensorFlow fixes its devices and its cluster at the first
operation; then the batch sizes, which need the number of replicas; then, in the strategy's scope,
everything that holds variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster
from trainer.config import batch_sizes
from trainer.config.directions import Directions
from trainer.config.options.constraints import format_value
from trainer.config.schema import Experiment
from trainer.engine.auditor import Auditor
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.engine import Engine
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.asynchronous.async_loops import AsyncLoops
from trainer.engine.graph.asynchronous.chunks import ChunkScheduler
from trainer.engine.graph.checks.graph_check import GraphCheck
from trainer.engine.graph.exchange.collectives import ExchangeTimer
from trainer.engine.graph.exchange.process_sum import ProcessSum
from trainer.engine.graph.input.faulty_feed import FaultyFeed
from trainer.engine.graph.input.feature_specs import feature_specs
from trainer.engine.graph.input.feed import Feed, Source
from trainer.engine.graph.input.mixed_order import sample_order
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.placement.device_traffic import traffic
from trainer.engine.graph.state.train_state import flip_bit
from trainer.engine.graph.step.clipping import Clip
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.graph.step.shard_tree import TreeExchange
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.loop_parts import LoopParts
from trainer.engine.pacing import StepPacer, make_save_timer
from trainer.engine.plan import make_plan
from trainer.engine.process_group import ProcessGroup
from trainer.engine.reporter import ExchangeTime, Reporter, ResultLines, WorkerClock
from trainer.engine.step_inspector import StepInspector
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.logical_devices import groups_of
from trainer.protocols import Dataset, DatasetDefaults, LoopDefaults, with_defaults
from trainer.runs import prediction_table, provenance
from trainer.runs.checkpoint_retention import KeepAudited
from trainer.runs.ledger import Ledger
from trainer.strategies import compatibility, devices
from trainer.strategies.select import select_strategy
from trainer.strategies.strategy import Strategy
from trainer.summaries.profiler import Profiler, boundary_steps
from trainer.worker.building.announcement import announce, row_announcer
from trainer.worker.building.build_dataset import build_dataset
from trainer.worker.building.build_model import (
    Learner,
    build_learner,
    create_strategy,
    make_inference,
    num_threads,
)
from trainer.worker.context import WorkerContext
from trainer.worker.run_checkpointer import memory_snapshots, run_checkpointer
from trainer.worker.run_log import writers_opener


@dataclass(frozen=True)
class _Training:
    """The parts of a training that the engine and its reporter share."""

    context: WorkerContext
    learner: Learner
    loop: TrainLoop
    process_group: ProcessGroup
    faults: Faults
    exchange: ExchangeTime | None


def engine(
    experiment: Experiment,
    run_dir: Path,
    channel: Channel,
    cluster: Cluster | None = None,
    faults: Faults | None = None,
    strategy: Strategy | None = None,
) -> Engine:
    """Build the engine of a run in a process without memory, as `engine_of` does."""
    return engine_of(
        WorkerContext(experiment, run_dir, channel, cluster or Cluster()), faults, strategy
    )


def engine_of(
    context: WorkerContext, faults: Faults | None = None, strategy: Strategy | None = None
) -> Engine:
    """Build the engine of a run, with all that it needs.

    Args:
        faults: the faults to inject; None: all that are configured.
        strategy: the resolved strategy; None: it is resolved here.

    Raises:
        ConfigError: something is wrong that only this machine, the data or the model can tell.
    """
    experiment, cluster = context.experiment, context.cluster
    faults = faults or Faults(experiment.fault or {}, context.run_dir, cluster, context.channel, ())
    if strategy is None:
        strategy, _ = select_strategy(experiment).resolve(cluster, devices.count_gpus)
    tf_strategy = create_strategy(context, strategy)
    process_group = process_group_of(strategy, tf_strategy, cluster)
    threads = _threads(context, process_group)
    sizes = _batch_sizes(context, tf_strategy)
    dataset = build_dataset(experiment, context, process_group)
    stops = faults.stops | boundary_steps(experiment.summary.profile)
    examples, asynchronous = dataset.train.num_examples, strategy.asynchronous
    plan = make_plan(experiment, examples, sizes.global_size, stops, asynchronous=asynchronous)
    learner = build_learner(context, strategy, tf_strategy, dataset, plan, sizes, process_group)
    compatibility.check(experiment, strategy, cluster, learner.task.models.values())
    train, evaluated, test = _sources(learner, experiment)
    loops = _loops(context, strategy, tf_strategy, learner)
    options, exchange = _step_options(experiment, strategy, learner, process_group)
    if process_group.is_chief:
        options = replace(options, note_rows=row_announcer(context.channel))
    inference = make_inference(context, learner, loops, process_group)
    for callback in learner.state.callbacks.values():
        if hasattr(callback, "directions"):
            callback.directions = inference.directions
    _record(context, learner, threads, inference.directions)
    announce(context, strategy, learner, process_group)
    parts = loop_parts(context, strategy, tf_strategy, learner, options, process_group, faults)
    loop = build_loop(parts, dataset, loops, train)
    training = _Training(context, learner, loop, process_group, faults, exchange)
    built = _engine(training, inference, evaluated, test)
    built.auditor = build_auditor(
        context, loop, process_group, plan.total_steps, built.checkpointer
    )
    return built


def _engine(training: _Training, inference: Inference, evaluated: Source, test: Source) -> Engine:
    context = training.context
    learner = training.learner
    plan = learner.plan
    has_validation = evaluated is not test
    lines = ResultLines(
        context.experiment,
        plan.total_steps,
        "validation" if has_validation else "test",
        metric_names(learner.task),
        inference.directions,
    )
    split = prediction_table.predicted_split(context.experiment, learner.dataset)
    predictor = inference.predictor(replace(evaluated, split=split))
    tests = has_validation and test.split.num_examples > 0
    ledger = Ledger(context.run_dir, writes=context.cluster.is_chief)
    inspects = plan.histograms or plan.images
    features = feature_specs(learner.dataset)
    checkpointer = run_checkpointer(
        context,
        training.faults,
        training.process_group,
        learner.state.trackables(),
        inference.directions,
    )
    return Engine(
        run_dir=context.run_dir,
        plan=plan,
        loop=training.loop,
        evaluator=inference.evaluator(evaluated, predictor),
        split=lines.split,
        make_test_evaluator=(lambda: inference.evaluator(test, inference.predictor(test)))
        if tests
        else None,
        predictor=predictor,
        reporter=_reporter(training, lines, ledger),
        step_inspector=StepInspector(training.loop, plan, features) if inspects else None,
        checkpointer=checkpointer,
        memory=memory_snapshots(context, checkpointer, training.process_group),
        ledger=ledger,
        channel=context.channel,
        save_timer=make_save_timer(context.experiment.checkpoint, ledger, context.channel),
        pacer=StepPacer(context.experiment.train.steps_per_loop),
        process_group=training.process_group,
        faults=training.faults,
    )


def process_group_of(
    strategy: Strategy, tf_strategy: tf.distribute.Strategy, cluster: Cluster
) -> ProcessGroup:
    """Return the processes that run every step together; a chief that hands out steps is alone."""
    members = [] if strategy.asynchronous else cluster.trainers
    if not members:
        return ProcessGroup(tf_strategy)
    return ProcessGroup(
        tf_strategy,
        members.index(cluster.process_id),
        len(members),
        is_chief=cluster.is_chief,
    )


def _threads(context: WorkerContext, process_group: ProcessGroup) -> int | None:
    """Return the number of threads of an operation, if the run fixes it; collective."""
    threads = num_threads(context)
    if threads is None:
        return None
    (chiefs,) = process_group.broadcast_from_chief(threads)
    if process_group.any_process(threads != chiefs):
        raise ConfigError(
            f"devices.threads (null) is {threads} on this host and {chiefs} on the chief's, but "
            f"batch.shards needs the same everywhere; add devices.threads={chiefs}"
        )
    return threads


def _batch_sizes(
    context: WorkerContext, tf_strategy: tf.distribute.Strategy
) -> batch_sizes.BatchSizes:
    batch = context.experiment.batch
    num_replicas = tf_strategy.num_replicas_in_sync
    if context.experiment.trains:
        before = provenance.num_replicas(context.run_dir)
        batch_sizes.check_same_global_batch(batch, before, num_replicas)
    return batch_sizes.resolve_batch_sizes(batch, num_replicas)


def _sources(learner: Learner, experiment: Experiment) -> tuple[Source, Source, Source]:
    """Return the training split in its random order, the split that selects, and the test split.

    The second one is the third where there is no validation split, or nothing is trained and there
    is a test split.
    """
    dataset = learner.dataset
    sizes = batch_sizes.in_groups(learner.sizes, with_defaults(dataset, DatasetDefaults).group_size)
    order = sample_order(dataset.train, experiment.seed)
    train = Source(dataset.train, sizes.per_replica, sizes.num_replicas, order, dataset.num_draws)
    test = Source(dataset.test, sizes.evaluated, sizes.num_replicas)
    validation = with_defaults(dataset, DatasetDefaults).validation
    if validation is None or not (experiment.trains or not dataset.test.num_examples):
        return train, test, test
    return train, replace(test, split=validation), test


def _loops(
    context: WorkerContext,
    strategy: Strategy,
    tf_strategy: tf.distribute.Strategy,
    learner: Learner,
) -> Loops:
    if strategy.asynchronous:
        num_workers = len(context.cluster.jobs["worker"])
        loops: Loops = AsyncLoops(tf_strategy, ChunkScheduler(tf_strategy, num_workers))
    else:
        in_order = bool(learner.sizes.shards)
        loops = Loops(tf_strategy, input_outside=strategy.input_outside, in_order=in_order)
    loops.check = GraphCheck(
        learner.state.trackables,
        context.channel.line,
        in_shards=context.experiment.batch.shards is not None,
    )
    return loops


def _step_options(
    experiment: Experiment, strategy: Strategy, learner: Learner, process_group: ProcessGroup
) -> tuple[StepOptions, ExchangeTime | None]:
    """Return the options of every step, and what tells how long its exchanges take.

    None for the time if there is nobody to wait for, or nothing to measure it with: on GPUs
    TensorFlow tells when an operation is queued, not when it is done, and with deterministic
    kernels it lets nobody read the clock.
    """
    options = _options(experiment, strategy, learner)
    if process_group.count == 1:
        return options, None
    exchange = options.exchange
    if isinstance(exchange, ProcessSum):
        return options, ExchangeTime(lambda: exchange.peers.waited_secs)
    local = process_group.local_devices
    if experiment.deterministic or any("CPU" not in device.upper() for device in local):
        return options, None
    timer = ExchangeTimer(len(local))
    return replace(options, exchange_timer=timer), ExchangeTime(timer.read, includes_travel=True)


def _options(experiment: Experiment, strategy: Strategy, learner: Learner) -> StepOptions:
    state = learner.state
    shards = learner.sizes.shards
    exchange = strategy.gradient_exchange(in_tree=shards is not None)
    return StepOptions(
        learner.sizes.accumulate,
        Clip(experiment.train.clip_norm, experiment.train.clip_value),
        experiment.jit,
        state.loss_scale,
        optimizer_reduces=strategy.optimizer_reduces,
        exchange=exchange or (None if shards is None else TreeExchange()),
        divergence_monitor=state.divergence_monitor,
        shards=shards,
        overlap=strategy.devices_per_replica > 1,
        adds_differences=strategy.asynchronous,
        rows=not strategy.static_shapes,
    )


def placement_writer(
    context: WorkerContext, tf_strategy: tf.distribute.Strategy, learner: Learner
) -> Callable[[tf.Graph], None]:
    """Return the function that is called with the graph of each step that has been traced.

    The chief writes placement.json: the layers of each device of the first replica, and the bytes
    that a step sends. An earlier attempt's is removed if replicas have but one device now.
    """
    groups = groups_of(tf_strategy)
    file = context.run_dir / "placement.json"
    if not context.cluster.is_chief:
        return lambda graph: None
    if groups is None:
        file.unlink(missing_ok=True)
        return lambda graph: None

    def write(graph: tf.Graph) -> None:
        within, between = traffic(graph, groups.groups)
        layers = {
            name.removeprefix("/device:"): [
                path for path, device in learner.placement.items() if device == number
            ]
            for number, name in enumerate(groups.groups[0])
        }
        write_json(file, {"layers": layers, "bytes_within": within, "bytes_between": between})
        context.channel.line(
            f"Placement: {len(layers)} devices for each replica; "
            f"{within:,} bytes between them in a step"
        )

    return write


def _record(
    context: WorkerContext, learner: Learner, threads: int | None, directions: Directions
) -> None:
    """Have the chief add to the run's record what only a worker knows."""
    if context.cluster.is_chief:
        plan = learner.plan
        provenance.update(
            context.run_dir,
            devices=devices.names(),
            num_replicas=learner.sizes.num_replicas,
            total_steps=plan.total_steps,
            threads=threads,
            metrics={"direction": dict(directions.by_metric), "primary": directions.primary},
            steps_per_epoch=plan.epochs.length,
        )


def _reporter(training: _Training, lines: ResultLines, ledger: Ledger) -> Reporter:
    context = training.context
    strategy = training.loop.strategy
    training.loop.on_traced = placement_writer(context, strategy, training.learner)
    profile = context.experiment.summary.profile
    events = context.run_dir / "events"
    return Reporter(
        training.learner.plan,
        training.loop,
        writers_opener(context, training.process_group, training.learner.task),
        context.channel,
        lines,
        ledger,
        Profiler(profile, events, context.channel) if context.cluster.is_chief else None,
        WorkerClock(
            training.process_group, list(map(str, context.cluster.trainers)), training.exchange
        ),
    )


def build_auditor(
    context: WorkerContext,
    loop: TrainLoop,
    process_group: ProcessGroup,
    total_steps: int,
    checkpointer: Checkpointer,
) -> Auditor | None:
    """Return what audits the run, with what keeps a checkpoint to go back to; None: nothing does.

    Raises:
        ConfigError: there is one replica.
    """
    every = context.experiment.watchdog.audit_every_steps
    if every is None:
        return None
    if loop.strategy.num_replicas_in_sync == 1:
        raise ConfigError(
            f"watchdog.audit_every_steps ({format_value(every)}) compares replicas, and there is "
            "one; add watchdog.audit_every_steps=null"
        )
    processes = list(map(str, context.cluster.trainers)) or [str(context.cluster.process_id)]
    auditor = Auditor(every, loop, process_group, processes, context.channel, total_steps)
    checkpointer.keep_also(KeepAudited(lambda: auditor.clean_step))
    return auditor


def loop_parts(
    context: WorkerContext,
    strategy: Strategy,
    tf_strategy: tf.distribute.Strategy,
    learner: Learner,
    options: StepOptions,
    process_group: ProcessGroup,
    faults: Faults,
) -> LoopParts:
    """Return what the training loop is built from."""
    experiment = context.experiment
    faults.on_flip_bit(lambda: flip_bit(learner.state, tf_strategy))

    def with_faults(feed: Feed) -> Feed:
        delays = faults.take_step_delays()
        if not faults.changes_steps:
            return feed
        # In all processes, also in those without the fault: to create its variable is collective.
        index = tf.distribute.coordinator.experimental_get_current_worker_index
        with tf_strategy.scope():
            return FaultyFeed(feed, faults, delays, index if strategy.asynchronous else None)

    return LoopParts(
        experiment,
        context.run_dir,
        context.channel,
        context.cluster,
        tf_strategy,
        process_group,
        learner.state,
        learner.sizes,
        options,
        learner.learning_rates,
        with_faults,
    )


def build_loop(parts: LoopParts, dataset: Dataset, loops: Loops, train: Source) -> TrainLoop:
    """Return the training loop.

    Args:
        train: the training split; not used where the data makes the loop.

    Raises:
        ConfigError: task and data do not go together, or an option is refused.
    """
    make_loop = with_defaults(dataset, LoopDefaults).make_loop
    if make_loop is not None:
        return loops.checked(make_loop(parts))
    return loops.train(
        dataset,
        parts.with_faults(loops.feed(train)),
        state=parts.state,
        options=parts.options,
        learning_rates=parts.learning_rates,
        seed=parts.experiment.seed,
    )
