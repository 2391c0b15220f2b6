"""What happens between the files of a checkpoint and its marker."""

from __future__ import annotations

from collections.abc import Callable

from trainer.cluster.fault_injection import Faults
from trainer.files import check_holder, lock_holder
from trainer.runs import provenance
from trainer.runs.directory import lock_file
from trainer.runs.identity import run_address
from trainer.runs.user_code import ImportedCode
from trainer.store.upload_note import wait_for_upload
from trainer.worker.context import WorkerContext


def before_commit(context: WorkerContext, faults: Faults) -> Callable[[], None]:
    """Return what the chief calls before it commits a checkpoint."""
    is_mirrored = run_address(context.experiment) is not None
    lock = lock_file(context.run_dir)
    holder = lock_holder(lock)
    code = ImportedCode()
    code.update()

    def call() -> None:
        if is_mirrored:
            channel = context.channel
            # Training may go on meanwhile: this must not hide that it hangs.
            wait_for_upload(
                context.run_dir,
                lambda: channel.beat_in("save"),
                context.is_stopping,
                channel.line,
            )
        faults.reached("save")
        check_holder(lock, holder)
        # What a step imports when it is traced came later than what builds it.
        code.update()
        provenance.record_code(context.run_dir, code.fingerprints)

    return call
