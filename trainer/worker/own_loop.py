"""Runs a training loop of the user's own in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trainer.config.directions import Directions
from trainer.config.instantiate import instantiate
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.pacing import Stopped, make_save_timer
from trainer.engine.plan import Epochs, save_policies
from trainer.errors import ConfigError
from trainer.own_loop.replicator import Replicator
from trainer.own_loop.session import Session
from trainer.runs import provenance
from trainer.runs.directory import write_result
from trainer.strategies import devices
from trainer.worker.announcement import announce_loop
from trainer.worker.run_checkpointer import RunCheckpointer, memory_snapshots
from trainer.worker.run_log import writers_opener
from trainer.worker.training import TrainingRun

_SAVE_SECS = 60.0
"""How often a run is saved that is configured to be saved neither by steps nor by time."""


def run_own_loop(run: TrainingRun) -> bool:
    """Call the user's function; return False if it was stopped on request, with its state saved.

    Raises:
        ConfigError: the function, or what it does with the replicator, is wrong.
    """
    strategy, group = run.tf_strategy, run.group
    num_replicas = strategy.num_replicas_in_sync
    _check_replicas(run, num_replicas)
    session = _session(run)
    options = StepOptions(
        optimizer_reduces=run.strategy.optimizer_reduces,
        exchange=run.strategy.gradient_exchange(in_tree=False),
    )
    replicator = Replicator(strategy, options, session, run.experiment.seed)
    announce_loop(run)
    is_finished = False
    try:
        # Called here, not by Hydra: a ValueError of a step is no mistake in the configuration.
        main = instantiate(run.experiment.loop, "loop", _partial_=True)
        with suppress(Stopped):
            main(replicator)
            session.save()
            is_finished = True
    finally:
        session.close()
    if is_finished and group.is_chief:
        write_result(run.run_dir, run.experiment, session.result())
    run.ledger.mark("end", session.step)
    group.leave()
    return is_finished


def _check_replicas(run: TrainingRun, now: int) -> None:
    """Check that a continued run has as many replicas as before, and have the chief record it."""
    before = provenance.num_replicas(run.run_dir)
    if before not in (None, now):
        raise ConfigError(
            f"this run was trained with {before} replicas, and here are {now}: what a custom "
            "loop computes depends on their number; continue it with the same, or start a new run"
        )
    if run.cluster.is_chief:
        steps = run.experiment.train.steps
        assert steps is not None, "trainer.config.rules requires it"
        provenance.update(run.run_dir, devices=devices.names(), num_replicas=now, total_steps=steps)


def _session(run: TrainingRun) -> Session:
    checkpoint, total_steps = run.experiment.checkpoint, run.experiment.train.steps
    assert total_steps is not None, "trainer.config.rules requires it"
    # It has no passes over data: a step counts as one example.
    by_step = replace(checkpoint, every_epochs=None, every_examples=None)
    policies = save_policies(by_step, Epochs(1, 1))
    if checkpoint.every_secs is None and not policies:
        checkpoint = replace(checkpoint, every_secs=_SAVE_SECS)

    def make_checkpointer(
        objects: Mapping[str, Any],
    ) -> tuple[Checkpointer, MemorySnapshots | None]:
        checkpointer = RunCheckpointer(run, objects, Directions())
        return checkpointer, memory_snapshots(run, checkpointer)

    return Session(
        run_dir=run.run_dir,
        total_steps=total_steps,
        save_policies=policies,
        save_timer=make_save_timer(checkpoint, run.ledger, run.channel),
        make_checkpointer=make_checkpointer,
        open_writers=writers_opener(run, None),
        ledger=run.ledger,
        channel=run.channel,
        process_group=run.group,
        faults=run.faults,
        requests=lambda: (run.stop_requested(), run.save_requested()),
    )
