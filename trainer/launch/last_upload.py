"""What the commands of a run in an object store wait for when it has ended: the last upload."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

from trainer.cluster.stop_requests import StopRequests
from trainer.config.schema import Experiment
from trainer.launch.display.console import Console
from trainer.store.lease import is_renewed, read_manifest
from trainer.store.mirror import Mirror
from trainer.store.object_store import StoreError, open_store, retry

_POLL_SECS = 0.1
_QUIET_SECS = 2.0  # most uploads take less, and are not worth a line


class _LeftError(Exception):
    """A person leaves at once."""


def finish(
    mirror: Mirror, address: str, path: Path, console: Console, requests: StopRequests
) -> bool:
    """Wait until the store has everything that the chief has written, unless a person leaves.

    Args:
        mirror: what uploads it.
        address: the run.
        path: its folder on this machine.
        console: shows what is waited for, and what the store lacks.
        requests: a second Ctrl-C among them ends the wait; nothing else does.

    Returns:
        Whether the store has everything.
    """
    problem = _wait(mirror, address, console, requests)
    if problem is not None:
        console.error(
            f"{address}: {problem}; what it lacks is in {path}, and the same command on this "
            "machine uploads it unless another has gone on meanwhile"
        )
    return problem is None


def _wait(mirror: Mirror, address: str, console: Console, requests: StopRequests) -> str | None:
    """Wait for the last upload; return what the store lacks and why, or None."""
    tell_at = time.monotonic() + _QUIET_SECS
    told = ""
    while not mirror.end(_POLL_SECS):
        requests.drain()
        if requests.is_leaving:
            return mirror.leave()
        text = f"Uploading to {address}."
        if requests.number:
            name = signal.Signals(requests.number).name
            text = f"{name}: uploading to {address}, then leaving{requests.hint()}."
        if text != told and time.monotonic() >= tell_at:
            console.line(text)
            told = text
    return mirror.finish()


def wait_for_chief(
    experiment: Experiment, address: str, console: Console, requests: StopRequests
) -> None:
    """Wait in another command than the chief's until that one has uploaded what it has saved.

    A scheduler may end all processes of a job soon after the first has left: `srun` with
    `--kill-on-bad-exit` kills them after half a minute. The chief gives up its lease when the store
    has everything. If it is killed, or cannot reach the store, its lease is silent.

    Args:
        experiment: the checked configuration.
        address: the run.
        console: shows what is waited for.
        requests: a second Ctrl-C among them ends the wait.
    """
    options = experiment.store

    def sleep(secs: float) -> None:
        time.sleep(secs)
        requests.drain()
        if requests.is_leaving:
            raise _LeftError

    with suppress(StoreError, _LeftError):  # the chief tells of the store
        store = open_store(address)
        chief = retry(lambda: read_manifest(store)[0], options.retry_secs, sleep)
        if not chief.is_free:
            console.line(f"Waiting until the chief has uploaded to {address}{requests.hint()}.")

        def is_uploading() -> bool:
            manifest, version = read_manifest(store)
            is_same = (manifest.holder, manifest.is_free) == (chief.holder, False)
            return is_same and is_renewed(store, version, options.lease_secs, sleep)

        while retry(is_uploading, options.retry_secs, sleep):
            pass
