"""Builds the audit of a run, and refuses one that could find nothing."""

from __future__ import annotations

from trainer.config.options.constraints import format_value
from trainer.engine.audit.auditor import Auditor
from trainer.engine.audit.recomputed_shard import RecomputedShard
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.protocols import LoopDefaults, Stream, with_defaults
from trainer.runs.checkpoint_retention import KeepAudited
from trainer.worker.building.build_model import Learner
from trainer.worker.context import WorkerContext


def build_auditor(
    context: WorkerContext,
    loop: TrainLoop,
    process_group: ProcessGroup,
    learner: Learner,
    train: Source,
    checkpointer: Checkpointer,
) -> Auditor | None:
    """Return what audits the run, with what keeps a checkpoint to go back to; None: nothing does.

    Args:
        context: this process.
        loop: the training loop.
        process_group: the processes that train together.
        learner: what is trained.
        train: the training split; not used where the data makes the loop.
        checkpointer: saves the run.

    Raises:
        ConfigError: there is one replica, which cannot compute a shard twice either.
    """
    every = context.experiment.watchdog.audit_every_steps
    if every is None:
        return None
    # Only data by index can be fetched again, and by another replica.
    is_by_index = with_defaults(learner.dataset, LoopDefaults).make_loop is None
    is_by_index = is_by_index and not isinstance(train.split, Stream)
    recomputes = loop.options.shards is not None and is_by_index
    if loop.strategy.num_replicas_in_sync == 1 and not recomputes:
        raise ConfigError(
            f"watchdog.audit_every_steps ({format_value(every)}) compares replicas, and there is "
            "one; that can compute a shard twice with batch.shards=8 and data by index, or add "
            "watchdog.audit_every_steps=null"
        )
    processes = list(map(str, context.cluster.trainers)) or [str(context.cluster.process_id)]
    recomputed = RecomputedShard(loop, train, context.experiment.seed) if recomputes else None
    total_steps = learner.plan.total_steps
    auditor = Auditor(
        every, loop, recomputed, process_group, processes, context.channel, total_steps
    )
    checkpointer.keep_also(KeepAudited(lambda: auditor.clean_step))
    return auditor
