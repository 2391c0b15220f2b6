"""The checkpointer of a training: what it waits for, records, and exchanges with other hosts.

No TensorFlow at its top: what stands between the files and the marker is tested without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainer.cluster.fault_injection import Faults
from trainer.config.directions import Directions
from trainer.errors import CheckpointError, DamagedError
from trainer.files import check_holder, lock_holder
from trainer.runs import checkpoint_retention, provenance
from trainer.runs.checkpoint_marker import committed_steps, marker_digest, remove, verify
from trainer.runs.directory import lock_file
from trainer.runs.identity import run_address
from trainer.runs.provenance import ImportedCode
from trainer.store.lease import read_manifest
from trainer.store.object_store import Store, StoreError, open_store, retry
from trainer.store.remote_files import (
    checkpoint_folder,
    download_checkpoint,
    folder_of,
    is_away,
    wait_for_upload,
)
from trainer.worker.context import WorkerContext

if TYPE_CHECKING:
    from trainer.engine.checkpoints.checkpointer import Checkpointer
    from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
    from trainer.engine.process_group import ProcessGroup

_POLL_SECS = 0.5


def run_checkpointer(
    context: WorkerContext,
    faults: Faults,
    process_group: ProcessGroup,
    objects: Mapping[str, Any],
    directions: Directions,
) -> Checkpointer:
    """Return what saves and restores the state of a training.

    Args:
        objects: what is saved, by name.
    """
    from trainer.engine.checkpoints.checkpointer import Checkpointer, CheckpointHooks

    checkpoint = context.experiment.checkpoint
    return Checkpointer(
        context.run_dir / "checkpoints",
        objects,
        checkpoint_retention.retention_policies(checkpoint, directions),
        process_group,
        background=writes_in_background(context),
        saved_once=context.run_dir / ".saved",
        hooks=CheckpointHooks(
            before_commit(context, faults), fetch_from_store(context), offer_by_store(context)
        ),
    )


def writes_in_background(context: WorkerContext) -> bool | None:
    """Return whether checkpoints are written in the background; None: if the state is held.

    The state that is held for a restart meanwhile would be lost with its host: of several hosts,
    the others go on from a later step, and the checkpoint would be missing.
    """
    chosen = context.experiment.checkpoint.async_write
    return False if chosen is None and context.cluster.is_declared else chosen


def memory_snapshots(
    context: WorkerContext, checkpointer: Checkpointer, process_group: ProcessGroup
) -> MemorySnapshots | None:
    """Return what keeps the state in memory; None: this process has no such memory."""
    from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots

    if context.memory_files is None:
        return None
    checkpoint = context.experiment.checkpoint
    return MemorySnapshots(
        checkpointer.reader,
        context.memory_files,
        process_group,
        every_steps=checkpoint.memory_every_steps,
        limited=checkpoint.memory == "auto",
        warn=context.channel.line,
    )


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
        with suppress(DamagedError):  # the checkpoint is worth more than a record that is damaged
            provenance.update(context.run_dir, code=code.fingerprints)

    return call


def fetch_from_store(context: WorkerContext) -> Callable[[int, str], None]:
    """Return what makes the folder of this process have a checkpoint of the chief.

    It takes the step, and the SHA-256 of the chief's marker. It does nothing in a process that uses
    the chief's folder.
    """
    address = run_address(context.experiment)

    def fetch(step: int, digest: str) -> None:
        if address is None or context.cluster.is_chief or not context.cluster.is_declared:
            return
        directory = context.run_dir / "checkpoints"
        for other in committed_steps(directory):
            if other != step:
                remove(directory, other)  # it restores no other
        with suppress(OSError):
            if marker_digest(directory, step) == digest and verify(directory, step) is None:
                return
        remove(directory, step)
        context.channel.line(f"Bringing the checkpoint of step {step} from {address}.")
        retry_secs = context.experiment.store.retry_secs
        try:
            store = open_store(address)
            folder = folder_of(step, digest)
            # The chief has seen it there: a store may answer late. The watchdog ends a vain wait.
            while not _has(store, step, folder, retry_secs):
                time.sleep(_POLL_SECS)
            problem = retry(lambda: download_checkpoint(store, folder, directory, step), retry_secs)
        except StoreError as error:
            problem = str(error)
        if problem is not None:
            raise CheckpointError(
                f"the checkpoint of step {step} could not be brought from {address}: {problem}"
            )

    return fetch


def offer_by_store(context: WorkerContext) -> Callable[[int], str]:
    """Return what waits in the chief until other hosts can bring the checkpoint of a step.

    It returns why they cannot, or an empty text. The others would wait for it in vain: so all learn
    of it from the chief.
    """
    address = run_address(context.experiment)
    cluster = context.cluster

    def offer(step: int) -> str:
        if address is None or not cluster.is_declared or len(cluster.process_ids) < 2:
            return ""
        retry_secs = context.experiment.store.retry_secs
        try:
            folder = checkpoint_folder(context.run_dir / "checkpoints", step)
            store = open_store(address)
            while not _has(store, step, folder, retry_secs):
                if is_away(context.run_dir):
                    raise StoreError("the store cannot be written")
                context.channel.beat()
                time.sleep(_POLL_SECS)
        except OSError as error:
            return (
                f"the checkpoint of step {step} is not in {address}, from where the other hosts "
                f"bring it: {error}; {context.run_dir} of the chief's host has it"
            )
        return ""

    return offer


def _has(store: Store, step: int, folder: str, retry_secs: float) -> bool:
    return retry(lambda: read_manifest(store), retry_secs)[0].checkpoints.get(step) == folder
