"""Takes the checkpoint that the chief restores through the run's object store to other hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import committed_steps, marker_digest, remove, verify
from trainer.runs.identity import run_address
from trainer.store.lease import read_manifest
from trainer.store.object_store import Store, StoreError, open_store, retry
from trainer.store.remote_files import checkpoint_folder, download_checkpoint, folder_of
from trainer.store.upload_note import is_away
from trainer.worker.context import WorkerContext

_POLL_SECS = 0.5


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
            _wait_for(store, step, folder_of(step, digest), retry_secs)
            problem = _download(store, step, folder_of(step, digest), directory, retry_secs)
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


def _wait_for(store: Store, step: int, folder: str, retry_secs: float) -> None:
    """Return when the store has a checkpoint, as the chief has seen: a store may answer late.

    Meanwhile nobody trains, so nobody removes it. The watchdog ends a wait that is in vain.
    """
    while not _has(store, step, folder, retry_secs):
        time.sleep(_POLL_SECS)


def _has(store: Store, step: int, folder: str, retry_secs: float) -> bool:
    return retry(lambda: read_manifest(store), retry_secs)[0].checkpoints.get(step) == folder


def _download(
    store: Store, step: int, folder: str, directory: Path, retry_secs: float
) -> str | None:
    return retry(lambda: download_checkpoint(store, folder, directory, step), retry_secs)
