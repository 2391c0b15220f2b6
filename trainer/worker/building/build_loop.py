"""Builds the training loop: on the batches of a dataset, or as the data says."""

from __future__ import annotations

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.engine.graph.input.faulty_feed import FaultyFeed
from trainer.engine.graph.input.feed import Feed, Source
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.state.flipped_bit import flip_bit
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.loop_parts import LoopParts
from trainer.engine.process_group import ProcessGroup
from trainer.protocols import Dataset, LoopDefaults, with_defaults
from trainer.strategies.strategy import Strategy
from trainer.worker.building.build_model import Learner
from trainer.worker.context import WorkerContext


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
        parts: what it is built from.
        dataset: the data.
        loops: makes the loops of a dataset.
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
