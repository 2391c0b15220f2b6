"""Builds the audit of a run, and refuses one that could find nothing."""

from __future__ import annotations

from trainer.config.options.constraints import format_value
from trainer.engine.audit.auditor import Auditor
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.runs.checkpoint_retention import KeepAudited
from trainer.worker.context import WorkerContext


def build_auditor(
    context: WorkerContext,
    loop: TrainLoop,
    process_group: ProcessGroup,
    total_steps: int,
    checkpointer: Checkpointer,
) -> Auditor | None:
    """Return what audits the run, with what keeps a checkpoint to go back to; None: nothing does.

    Args:
        context: this process.
        loop: the training loop.
        process_group: the processes that train together.
        total_steps: length of the whole training.
        checkpointer: saves the run.

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
