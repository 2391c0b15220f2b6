"""A run that trains, or evaluates and predicts as it was trained: all that its engine needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from trainer.config import batch_sizes
from trainer.config.options.constraints import format_value
from trainer.engine.auditor import Auditor
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.engine import Engine
from trainer.engine.graph.exchange.collectives import ExchangeTimer
from trainer.engine.graph.exchange.process_sum import ProcessSum
from trainer.engine.graph.input.feature_specs import feature_specs
from trainer.engine.graph.input.feed import FaultyFeed, Feed, Source, sample_order
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.placement.step_devices import traffic
from trainer.engine.graph.state.train_state import flip_bit
from trainer.engine.graph.step.shard_tree import TreeExchange
from trainer.engine.graph.step.step_options import Exchange, StepOptions
from trainer.engine.graph.step.update_check import Clip
from trainer.engine.pacing import StepPacer, make_save_timer
from trainer.engine.reporter import ExchangeTime, Reporter, WorkerClock
from trainer.engine.step_inspector import StepInspector
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.logical_devices import groups_of
from trainer.protocols import DatasetDefaults, LoopDefaults, with_defaults
from trainer.runs import prediction_table, provenance
from trainer.runs.checkpoint_retention import KeepAudited
from trainer.runs.ledger import Ledger
from trainer.strategies import compatibility, devices
from trainer.summaries.profiler import Profiler
from trainer.worker.announcement import announce, row_announcer
from trainer.worker.run import Run
from trainer.worker.run_checkpointer import RunCheckpointer, memory_snapshots
from trainer.worker.run_log import writers_opener


@dataclass(eq=False, repr=False)
class TrainingRun(Run):
    """A run in a process that trains it, or uses all its devices otherwise."""

    @cached_property
    def engine(self) -> Engine:
        """The engine, with nothing restored."""
        self._check_threads()
        models = self.state.task.models.values()
        compatibility.check(self.experiment, self.strategy, self.cluster, models)
        for callback in self.callbacks.values():
            if hasattr(callback, "directions"):
                callback.directions = self.inference.directions
        self._record()
        announce(self)
        loop = self.loop
        plan, test, evaluated = self.plan, self.evaluated("test"), self.evaluated(self.split)
        predicted = prediction_table.predicted_split(self.experiment, self.dataset)
        predictor = self.inference.predictor(replace(evaluated, split=predicted))
        tests_last = self.split != "test" and test.split.num_examples > 0
        inspects = plan.histograms or plan.images
        features = feature_specs(self.dataset)
        return Engine(
            run_dir=self.run_dir,
            plan=plan,
            loop=loop,
            evaluator=self.inference.evaluator(evaluated, predictor),
            split=self.split,
            make_test_evaluator=(
                lambda: self.inference.evaluator(test, self.inference.predictor(test))
            )
            if tests_last
            else None,
            predictor=predictor,
            reporter=self._reporter(),
            step_inspector=StepInspector(loop, plan, features) if inspects else None,
            checkpointer=self.checkpointer,
            auditor=self.auditor,
            memory=memory_snapshots(self, self.checkpointer),
            ledger=self.ledger,
            channel=self.channel,
            save_timer=make_save_timer(self.experiment.checkpoint, self.ledger, self.channel),
            pacer=StepPacer(self.experiment.train.steps_per_loop),
            process_group=self.group,
            faults=self.faults,
        )

    def _check_threads(self) -> None:
        """Check that all processes use as many threads, if the run fixes them; collective."""
        if self.num_threads is None:
            return
        (chiefs,) = self.group.broadcast_from_chief(self.num_threads)
        if self.group.any_process(self.num_threads != chiefs):
            raise ConfigError(
                f"devices.threads (null) is {self.num_threads} on this host and {chiefs} on the "
                "chief's, but batch.shards needs the same everywhere; add "
                f"devices.threads={chiefs}"
            )

    def _record(self) -> None:
        """Have the chief complete the run's record."""
        if self.cluster.is_chief and self.experiment.trains:
            directions = self.inference.directions
            provenance.update(
                self.run_dir,
                devices=devices.names(),
                num_replicas=self.sizes.num_replicas,
                total_steps=self.plan.total_steps,
                threads=self.num_threads,
                metrics={"direction": dict(directions.by_metric), "primary": directions.primary},
                steps_per_epoch=self.plan.epochs.length,
            )

    @cached_property
    def ledger(self) -> Ledger:
        """Where the wall time went."""
        return Ledger(self.run_dir, writes=self.cluster.is_chief)

    @cached_property
    def exchange(self) -> Exchange | None:
        """What sums gradients over the replicas; None: TensorFlow's reduction. Collective."""
        in_tree = self.sizes.shards is not None
        exchange = self.strategy.gradient_exchange(in_tree=in_tree)
        return TreeExchange() if in_tree and exchange is None else exchange

    @cached_property
    def exchange_times(self) -> tuple[ExchangeTime | None, ExchangeTimer | None]:
        """What has the times of the exchanges, and what measures them if the exchange does not.

        None if nothing is waited for, or nothing can measure it: on GPUs TensorFlow shows
        when an operation is queued, not when it is done, and with deterministic kernels
        the clock cannot be read.
        """
        exchange = self.exchange
        if self.group.count == 1:
            return None, None
        if isinstance(exchange, ProcessSum):
            return ExchangeTime(lambda: exchange.peers.waited_secs), None
        local = self.group.local_devices
        if self.experiment.deterministic or any("CPU" not in device.upper() for device in local):
            return None, None
        timer = ExchangeTimer(len(local))
        return ExchangeTime(timer.read, includes_travel=True), timer

    @cached_property
    def options(self) -> StepOptions:
        """The options of every step."""
        experiment, strategy, state = self.experiment, self.strategy, self.state
        _, exchange_timer = self.exchange_times
        notes = {"note_rows": row_announcer(self.channel)} if self.group.is_chief else {}
        return StepOptions(
            self.sizes.accumulate,
            Clip.of(vars(experiment.train)),
            experiment.jit,
            state.loss_scale,
            optimizer_reduces=strategy.optimizer_reduces,
            exchange=self.exchange,
            exchange_timer=exchange_timer,
            divergence_monitor=state.divergence_monitor,
            shards=self.sizes.shards,
            overlap=strategy.devices_per_replica > 1,
            adds_differences=strategy.asynchronous,
            rows=not strategy.static_shapes,
            **notes,
        )

    @cached_property
    def loop_options(self) -> dict[str, Any]:
        """What any training loop is built with in addition to strategy, dataset and feed."""
        return {
            "state": self.state,
            "options": self.options,
            "schedules": self.parts.learning_rates,
            "seed": self.experiment.seed,
            "on_traced": self._placement_writer(),
            "check": self.loops.check,
        }

    @cached_property
    def loop(self) -> TrainLoop:
        """The loop over training steps, which the data may make."""
        self.faults.on_flip_bit(lambda: flip_bit(self.state, self.tf_strategy))
        make_loop = with_defaults(self.dataset, LoopDefaults).make_loop
        if make_loop is not None:
            loop: TrainLoop = make_loop(self)
            return loop
        feed = self.with_faults(self.loops.feed(self._train_source()))
        return self.loops.train(self.dataset, feed, **self.loop_options)

    def _train_source(self) -> Source:
        """Return the training split in its random order."""
        dataset = self.dataset
        group_size = with_defaults(dataset, DatasetDefaults).group_size
        sizes = batch_sizes.in_groups(self.sizes, group_size)
        order = sample_order(dataset.train, self.experiment.seed)
        replicas = sizes.num_replicas
        return Source(dataset.train, sizes.per_replica, replicas, order, dataset.num_draws)

    def with_faults(self, feed: Feed) -> Feed:
        """Return a feed with the faults that are injected there."""
        delays = self.faults.take_step_delays()
        if not self.faults.changes_steps:
            return feed
        # In all processes, also in those without the fault: to create its variable is collective.
        index = tf.distribute.coordinator.experimental_get_current_worker_index
        with self.tf_strategy.scope():
            worker = index if self.strategy.asynchronous else None
            return FaultyFeed(feed, self.faults, delays, worker)

    def _placement_writer(self) -> Callable[[tf.Graph], None]:
        """Return the function that is called with the graph of each step that has been traced.

        The chief writes placement.json: the layers of each device of the first replica, and the
        bytes that a step sends. An earlier attempt's is removed if replicas have but one device.
        """
        groups = groups_of(self.tf_strategy)
        file = self.run_dir / "placement.json"
        if groups is None or not self.cluster.is_chief:
            if self.cluster.is_chief:
                file.unlink(missing_ok=True)
            return lambda graph: None
        planned, _ = self.placement

        def write(graph: tf.Graph) -> None:
            within, between = traffic(graph, groups.groups)
            layers = {
                name.removeprefix("/device:"): [
                    path for path, device in planned.devices.items() if device == number
                ]
                for number, name in enumerate(groups.groups[0])
            }
            write_json(file, {"layers": layers, "bytes_within": within, "bytes_between": between})
            self.channel.line(
                f"Placement: {len(layers)} devices for each replica; "
                f"{within:,} bytes between them in a step"
            )

        return write

    @cached_property
    def auditor(self) -> Auditor | None:
        """What audits the run; None: nothing does."""
        every = self.experiment.watchdog.audit_every_steps
        if every is None:
            return None
        if self.tf_strategy.num_replicas_in_sync == 1:
            raise ConfigError(
                f"watchdog.audit_every_steps ({format_value(every)}) compares replicas, and there "
                "is one; add watchdog.audit_every_steps=null"
            )
        names = list(map(str, self.cluster.trainers)) or [str(self.cluster.process_id)]
        total_steps = self.plan.total_steps
        return Auditor(every, self.loop, self.group, names, self.channel, total_steps)

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """What saves and restores the state, and keeps a checkpoint for an audit to go back to."""
        auditor = self.auditor
        audited = [] if auditor is None else [KeepAudited(lambda: auditor.clean_step)]
        directions = self.inference.directions
        return RunCheckpointer(self, self.state.trackables(), directions, audited)

    def _reporter(self) -> Reporter:
        experiment, channel, is_chief = self.experiment, self.channel, self.cluster.is_chief
        events = self.run_dir / "events"
        profiler = Profiler(experiment.summary.profile, events, channel) if is_chief else None
        names = list(map(str, self.cluster.trainers))
        exchange_time, _ = self.exchange_times
        return Reporter(
            self.plan,
            self.loop,
            writers_opener(self, self.task),
            channel,
            self.lines,
            self.ledger,
            profiler,
            WorkerClock(self.group, names, exchange_time),
        )
