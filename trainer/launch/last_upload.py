"""What the command of a run in an object store waits for when it has ended: the last upload."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from trainer.cluster.stop_requests import StopRequests
from trainer.launch.console import Console
from trainer.launch.mirror import Mirror

_POLL_SECS = 0.1
_QUIET_SECS = 2.0  # most uploads take less, and are not worth a line


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
