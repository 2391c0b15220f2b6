"""What happens between the files of a checkpoint and its marker."""

from __future__ import annotations

from collections.abc import Callable

from trainer.cluster.fault_injection import Faults
from trainer.runs.directory import run_address
from trainer.runs.upload_note import wait_for_upload
from trainer.worker.context import WorkerContext


def before_commit(context: WorkerContext, faults: Faults) -> Callable[[], None]:
    """Return what the chief calls before it commits a checkpoint."""
    is_mirrored = run_address(context.experiment) is not None

    def call() -> None:
        if is_mirrored:
            wait_for_upload(context.run_dir, context.channel.beat)
        faults.reached("save")

    return call
