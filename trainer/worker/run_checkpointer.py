"""The checkpointer of a training: what it waits for, records, and exchanges with other hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer.config.directions import Directions
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
from trainer.errors import CheckpointError, DamagedError
from trainer.files import check_holder, lock_holder
from trainer.runs import checkpoint_retention, provenance
from trainer.runs.checkpoint_marker import committed_steps, marker_digest, remove, verify
from trainer.runs.checkpoint_retention import RetentionPolicy
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
from trainer.worker.run import Run

_POLL_SECS = 0.5


class RunCheckpointer(Checkpointer):
    """Saves and restores a training; without a folder that all hosts share, through the store."""

    def __init__(
        self,
        run: Run,
        objects: Mapping[str, Any],
        directions: Directions,
        also: Sequence[RetentionPolicy] = (),
    ) -> None:
        checkpoint = run.experiment.checkpoint
        background = checkpoint.async_write
        if background is None and run.cluster.is_declared:
            # The state that is held meanwhile would be lost with its host: the other hosts continue
            # from a later step, and the checkpoint would be missing.
            background = False
        super().__init__(
            run.run_dir / "checkpoints",
            objects,
            [*checkpoint_retention.retention_policies(checkpoint, directions), *also],
            run.group,
            background=background,
            saved_once=run.run_dir / ".saved",
        )
        self._run = run
        self._address = run_address(run.experiment)
        self._lock = lock_file(run.run_dir)
        self._holder = lock_holder(self._lock)
        self._code = ImportedCode()
        self._code.update()

    def before_commit(self) -> None:
        """Wait for the upload of the checkpoint before, and record the code that made this one."""
        run = self._run
        if self._address is not None:
            # Training may continue meanwhile: this must not hide that it hangs.
            wait_for_upload(
                run.run_dir,
                lambda: run.channel.beat_in("save"),
                run.stop_requested,
                run.channel.line,
            )
        run.faults.reached("save")
        check_holder(self._lock, self._holder)
        # What a step imports when it is traced came later than what builds it.
        self._code.update()
        with suppress(DamagedError):  # the checkpoint is worth more than a record that is damaged
            provenance.update(run.run_dir, code=self._code.fingerprints)

    def before_restore(self, step: int, digest: str) -> None:
        """Download a checkpoint of the chief's, if this process does not use the chief's folder."""
        run, address = self._run, self._address
        if address is None or run.cluster.is_chief or not run.cluster.is_declared:
            return
        for other in committed_steps(self.directory):
            if other != step:
                remove(self.directory, other)  # it restores no other
        with suppress(OSError):
            is_same = marker_digest(self.directory, step) == digest
            if is_same and verify(self.directory, step) is None:
                return
        remove(self.directory, step)
        run.channel.line(f"Downloading the checkpoint of step {step} from {address}.")
        retry_secs = run.experiment.store.retry_secs
        try:
            store = open_store(address)
            folder = folder_of(step, digest)
            # The chief has seen it there: a store may answer late. The watchdog ends a vain wait.
            while not _has(store, step, folder, retry_secs):
                time.sleep(_POLL_SECS)
            problem = retry(
                lambda: download_checkpoint(store, folder, self.directory, step), retry_secs
            )
        except StoreError as error:
            problem = str(error)
        if problem is not None:
            raise CheckpointError(
                f"the checkpoint of step {step} could not be downloaded from {address}: {problem}"
            )

    def before_offer(self, step: int) -> str:
        """Wait until other hosts can download a checkpoint; return why they cannot, or nothing.

        The others would wait for it in vain: so all learn of it from the chief.
        """
        run, address = self._run, self._address
        cluster = run.cluster
        if address is None or not cluster.is_declared or len(cluster.process_ids) < 2:
            return ""
        retry_secs = run.experiment.store.retry_secs
        try:
            folder = checkpoint_folder(self.directory, step)
            store = open_store(address)
            while not _has(store, step, folder, retry_secs):
                if is_away(run.run_dir):
                    raise StoreError("the store cannot be written")
                run.channel.beat()
                time.sleep(_POLL_SECS)
        except OSError as error:
            return (
                f"the checkpoint of step {step} is not in {address}, from where the other hosts "
                f"download it: {error}; {run.run_dir} of the chief's host has it"
            )
        return ""


def memory_snapshots(run: Run, checkpointer: Checkpointer) -> MemorySnapshots | None:
    """Return what keeps the state in memory; None: this process has no such memory."""
    if run.memory_files is None:
        return None
    checkpoint = run.experiment.checkpoint
    return MemorySnapshots(
        checkpointer.reader,
        run.memory_files,
        run.group,
        every_steps=checkpoint.memory_every_steps,
        limited=checkpoint.memory == "auto",
        warn=run.channel.line,
    )


def _has(store: Store, step: int, folder: str, retry_secs: float) -> bool:
    return retry(lambda: read_manifest(store), retry_secs)[0].checkpoints.get(step) == folder
