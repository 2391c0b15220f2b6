"""The first lines of a run for the user: devices, batch, length, and the sources of a mixture."""

from __future__ import annotations

from trainer.config.rules.checkpoint import biased_selection
from trainer.engine.graph.input.mixed_order import epoch_lines
from trainer.strategies.strategy import Strategy
from trainer.worker.building.build_model import Learner
from trainer.worker.context import WorkerContext


def announce(context: WorkerContext, strategy: Strategy, learner: Learner) -> None:
    """Send the first lines: devices, communication, batch and length."""
    channel = context.channel
    sizes = learner.sizes
    # A chief's workers are no replicas of one another: each runs steps of its own.
    num_workers = len(context.cluster.jobs["worker"]) if strategy.asynchronous else 1
    num_devices = sizes.num_replicas * num_workers * strategy.devices_per_replica
    channel.line(f"Number of devices: {num_devices}")
    if strategy.communication:
        channel.line(f"Communication: {strategy.communication}")
    total = learner.plan.total_steps
    epochs = learner.plan.epochs.completed(total)
    length = f", {epochs} epoch{'s' if epochs > 1 else ''}" if epochs else ""
    channel.line(f"Batch: {sizes}; {total} steps{length}")
    notes = biased_selection(context.experiment)
    for line in [*notes, *epoch_lines(learner.dataset.train, total * sizes.global_size)]:
        channel.line(line)
