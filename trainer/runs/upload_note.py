"""A note beside a run's checkpoints: which of them the store has. The parent writes it.

A worker waits with each commit until the store has the checkpoint before it, so that no kill, and
no loss of the machine, takes more than the newest. After a stop request it does not: its time may
be over before the store answers, and then what it has made since would be nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.files import write_atomically
from trainer.runs.checkpoint_marker import committed_steps

_NOTE = ".uploaded"
_AWAY = "away"
_POLL_SECS = 0.02
_BEAT_POLLS = 50


def write_note(run_dir: Path, step: int | None) -> None:
    """Note the newest step that the store has; None: no step need wait for the store."""
    # The run directory of a failed start may be gone.
    with suppress(OSError):
        write_atomically(run_dir / _NOTE, _AWAY if step is None else str(step), durable=False)


def wait_for_upload(
    run_dir: Path, beat: Callable[[], None], is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Return when the store has the newest committed checkpoint, or need not have it.

    Args:
        run_dir: the run directory.
        beat: called about once a second: this takes as long as the upload.
        is_stopping: whether a stop was requested, which ends the wait.
    """
    newest = max(committed_steps(run_dir / "checkpoints"), default=None)
    polls = 0
    while newest is not None and not (_has(run_dir, newest) or is_stopping()):
        time.sleep(_POLL_SECS)
        polls += 1
        if polls % _BEAT_POLLS == 0:
            beat()


def is_away(run_dir: Path) -> bool:
    """Return whether the store has failed for so long that the run goes on without it."""
    try:
        return (run_dir / _NOTE).read_text() == _AWAY
    except OSError:
        return False


def _has(run_dir: Path, step: int) -> bool:
    try:
        return (run_dir / _NOTE).read_text() in (_AWAY, str(step))
    except OSError:
        return False
