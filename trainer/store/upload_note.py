"""A note beside a run's checkpoints: which of them the store has. The parent writes it.

A worker waits with each commit until the store has the checkpoint before it, so that no kill, and
no loss of the machine, takes more than the newest. After a stop request it does not: its time may
be over before the store answers, and then what it has made since would be nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from trainer.errors import DamagedError
from trainer.files import read_text, write_atomically
from trainer.runs.checkpoint_marker import committed_steps
from trainer.store.remote_files import CHECKPOINTS, checkpoint_folder

_NOTE = ".uploaded"
_AWAY = "away"
_POLL_SECS = 0.02
_BEAT_POLLS = 50
_WARN_POLLS = 3000  # a minute


def write_note(run_dir: Path, folders: Collection[str] | None) -> None:
    """Note which checkpoints the store has.

    Args:
        run_dir: the run directory.
        folders: of their objects: a step that is made again after a rollback is another
            checkpoint. None: no checkpoint need wait for the store.
    """
    # The run directory of a failed start may be gone.
    with suppress(OSError):
        text = _AWAY if folders is None else "\n".join(folders)
        write_atomically(run_dir / _NOTE, text, durable=False)


def wait_for_upload(
    run_dir: Path,
    beat: Callable[[], None],
    is_stopping: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda line: None,
) -> None:
    """Return when the store has the newest committed checkpoint, or need not have it.

    The parent uploads it, or notes that the store is away, after `store.retry_secs` at most.

    Args:
        run_dir: the run directory.
        beat: called about once a second: this takes as long as the upload.
        is_stopping: whether a stop was requested, which ends the wait.
        warn: told once, after a minute, what is awaited.
    """
    directory = run_dir / CHECKPOINTS
    newest = max(committed_steps(directory), default=None)
    if newest is None:
        return
    folder = checkpoint_folder(directory, newest)
    polls = 0
    while not (_has(run_dir, folder) or is_stopping()):
        time.sleep(_POLL_SECS)
        polls += 1
        if polls % _BEAT_POLLS == 0:
            beat()
        if polls == _WARN_POLLS:
            warn(f"warning: the next checkpoint waits for the upload of that of step {newest}")


def is_away(run_dir: Path) -> bool:
    """Return whether the store has failed for so long that the run goes on without it."""
    return _read(run_dir) == _AWAY


def _has(run_dir: Path, folder: str) -> bool:
    return not {_AWAY, folder}.isdisjoint(_read(run_dir).split())


def _read(run_dir: Path) -> str:
    try:
        return read_text(run_dir / _NOTE)
    except (FileNotFoundError, DamagedError):
        return ""
