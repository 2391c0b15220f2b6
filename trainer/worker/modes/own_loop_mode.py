"""Runs a training loop of the user's own in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trainer.cluster.fault_injection import Faults
from trainer.cluster.signals import Signals
from trainer.config.directions import Directions
from trainer.config.instantiate import instantiate
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.pacing import Stopped, make_save_timer
from trainer.engine.plan import Epochs, save_policies
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.own_loop.replicator import Replicator
from trainer.own_loop.session import Session
from trainer.runs import provenance
from trainer.runs.directory import write_result
from trainer.runs.ledger import Ledger
from trainer.strategies import devices
from trainer.strategies.strategy import Strategy
from trainer.worker.building.announcement import announce_loop
from trainer.worker.building.build import process_group_of
from trainer.worker.building.build_model import create_strategy
from trainer.worker.context import WorkerContext
from trainer.worker.run_checkpointer import memory_snapshots, run_checkpointer
from trainer.worker.run_log import writers_opener

_SAVE_SECS = 60.0
"""How often a run is saved that is configured to be saved neither by steps nor by time."""


def run_own_loop(
    context: WorkerContext, strategy: Strategy, faults: Faults, signals: Signals
) -> bool:
    """Call the user's function; return False if it was stopped on request, with its state saved.

    Raises:
        ConfigError: the function, or what it does with the replicator, is wrong.
    """
    experiment = context.experiment
    tf_strategy = create_strategy(context, strategy)
    process_group = process_group_of(strategy, tf_strategy, context.cluster)
    num_replicas = tf_strategy.num_replicas_in_sync
    _check_replicas(context, num_replicas)
    session = _session(context, process_group, faults, signals)
    options = StepOptions(
        optimizer_reduces=strategy.optimizer_reduces,
        exchange=strategy.gradient_exchange(in_tree=False),
    )
    replicator = Replicator(tf_strategy, options, session, experiment.seed)
    announce_loop(context, strategy, num_replicas, process_group)
    try:
        is_finished = _call(context, replicator, session)
    finally:
        session.close()
    if is_finished and process_group.is_chief:
        write_result(context.run_dir, experiment, session.result())
    session.ledger.mark("end", session.step)
    process_group.leave()
    return is_finished


def _call(context: WorkerContext, replicator: Replicator, session: Session) -> bool:
    """Run the user's function to its end, and save; return False if it was stopped."""
    # Called here, not by Hydra: a ValueError of a step is no mistake in the configuration.
    main = instantiate(context.experiment.loop, "loop", _partial_=True)
    with suppress(Stopped):
        main(replicator)
        session.save()
        return True
    return False


def _check_replicas(context: WorkerContext, now: int) -> None:
    """Check that a continued run has as many replicas as before, and have the chief record it."""
    before = provenance.num_replicas(context.run_dir)
    if before not in (None, now):
        raise ConfigError(
            f"this run was trained with {before} replicas, and here are {now}: what a loop of your "
            "own computes depends on their number; continue it with the same, or start a new run"
        )
    if context.cluster.is_chief:
        steps = context.experiment.train.steps
        assert steps is not None, "trainer.config.rules requires it"
        provenance.update(
            context.run_dir, devices=devices.names(), num_replicas=now, total_steps=steps
        )


def _session(
    context: WorkerContext, process_group: ProcessGroup, faults: Faults, signals: Signals
) -> Session:
    experiment = context.experiment
    run_dir = context.run_dir
    checkpoint = experiment.checkpoint
    # It has no passes over data: a step counts as one example.
    by_step = replace(checkpoint, every_epochs=None, every_examples=None)
    policies = save_policies(by_step, Epochs(1, 1))
    if checkpoint.every_secs is None and not policies:
        checkpoint = replace(checkpoint, every_secs=_SAVE_SECS)
    ledger = Ledger(run_dir, writes=context.cluster.is_chief)

    def make_checkpointer(
        objects: Mapping[str, Any],
    ) -> tuple[Checkpointer, MemorySnapshots | None]:
        checkpointer = run_checkpointer(context, faults, process_group, objects, Directions())
        return checkpointer, memory_snapshots(context, checkpointer, process_group)

    assert experiment.train.steps is not None, "trainer.config.rules requires it"
    return Session(
        run_dir=run_dir,
        total_steps=experiment.train.steps,
        save_policies=policies,
        save_timer=make_save_timer(checkpoint, ledger, context.channel),
        make_checkpointer=make_checkpointer,
        open_writers=writers_opener(context, process_group, None),
        ledger=ledger,
        channel=context.channel,
        process_group=process_group,
        faults=faults,
        requests=lambda: (signals.stop(), signals.save()),
    )
