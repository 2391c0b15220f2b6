"""The files of a run between its folder on this machine and its objects in a store.

manifest.json                            what exists; see `trainer.store.lease`
files/<lease>/<path>                     a file, as uploaded under that lease
checkpoints/ckpt-<step>-<hash>/<name>    a checkpoint: data, marker; the hash is that of the marker

No object that a manifest names is written again by another holder, and none is removed before a
manifest without it is in place.

A note next to the checkpoints on this machine lists which of them the store has. The parent writes
it. A worker waits with each commit until the store has the checkpoint before it, so that no kill,
and no loss of the machine, takes more than the newest. After a stop request it does not: its time
may be over before the store answers, and then what it has made since would be nowhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from trainer.errors import DamagedError
from trainer.files import component, inner_path, read_text, write_atomically
from trainer.runs.checkpoint_marker import (
    committed_steps,
    marker_digest,
    marker_file,
    read_marker,
    verify,
)
from trainer.store.lease import Manifest
from trainer.store.object_store import MissingObjectError, Store

CHECKPOINTS = "checkpoints"
_SAVED = ".saved"
_TRIES = 3
"""How often what does not verify is brought: the damage may have happened on the way."""
_NOTE = ".uploaded"
_AWAY = "away"
_POLL_SECS = 0.02
_BEAT_POLLS = 50
_WARN_POLLS = 3000  # a minute


def run_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield relative path and path of each file of a run, without checkpoints and locks."""
    for folder, names, files in os.walk(path):
        if folder == str(path):
            names[:] = [name for name in names if name != CHECKPOINTS]
        for name in files:
            file = Path(folder, name)
            is_hidden = name.startswith(".") and name != _SAVED
            if not is_hidden and file.is_file() and not file.is_symlink():
                with suppress(ValueError):  # no part of a run has such a name
                    yield inner_path(file.relative_to(path).as_posix()), file


def file_object(manifest: Manifest, name: str) -> str:
    """Return the name of the object of a file of the run."""
    return f"files/{manifest.files[name]}/{name}"


def checkpoint_folder(directory: Path, step: int) -> str:
    """Return the folder of a committed checkpoint's objects, or raise an OSError."""
    return folder_of(step, marker_digest(directory, step))


def folder_of(step: int, digest: str) -> str:
    """Return the name of the folder of the objects of a checkpoint whose marker has a SHA-256."""
    return f"ckpt-{step}-{digest[:16]}"


def stage_checkpoint(directory: Path, step: int, target: Path) -> str | None:
    """Link the files of a checkpoint, so that retention cannot remove them during the upload.

    Return the folder of its objects, or None if it has been removed or replaced meanwhile.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        folder = checkpoint_folder(directory, step)
        for name in [*read_marker(directory, step)["files"], marker_file(directory, step).name]:
            os.link(directory / name, target / name)
        # The marker is the last to appear and the first to go: what was linked between is whole.
        is_same = checkpoint_folder(directory, step) == folder
    except FileNotFoundError:
        return None
    return folder if is_same and checkpoint_folder(target, step) == folder else None


def upload_checkpoint(store: Store, staged: Path, step: int, folder: str) -> None:
    """Upload the files of a staged checkpoint, the marker last."""
    marker = marker_file(staged, step)
    for file in sorted(staged.iterdir(), key=lambda file: (file == marker, file.name)):
        store.upload(file, f"{CHECKPOINTS}/{folder}/{file.name}")


def download(store: Store, manifest: Manifest, path: Path) -> list[str]:
    """Bring a run to an empty folder; return what is wrong with each checkpoint that is missing."""
    for name in manifest.files:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name == "config.yaml":  # which may have secrets
            file.touch(0o600)
        store.download(file_object(manifest, name), file)
    problems = []
    directory = path / CHECKPOINTS
    for step, folder in sorted(manifest.checkpoints.items()):
        problem = download_checkpoint(store, folder, directory, step)
        if problem is not None:
            problems.append(f"skipped the checkpoint of step {step}: {problem}")
    return problems


def download_checkpoint(store: Store, folder: str, directory: Path, step: int) -> str | None:
    """Bring a checkpoint; return what is wrong with it, or None."""
    directory.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        problem = _download_once(store, folder, directory, step)
        if problem is None:
            break
    return problem


def _download_once(store: Store, folder: str, directory: Path, step: int) -> str | None:
    """Bring a checkpoint, the marker last; return what is wrong with it, or None."""
    marker = marker_file(directory, step)
    temporary = directory / f".{marker.name}.tmp"
    try:
        store.download(f"{CHECKPOINTS}/{folder}/{marker.name}", temporary)
        content = temporary.read_bytes()
        temporary.unlink()
        if folder != folder_of(step, hashlib.sha256(content).hexdigest()):
            return "the content of its marker has changed"
        for name in map(component, json.loads(content)["files"]):
            store.download(f"{CHECKPOINTS}/{folder}/{name}", directory / name)
        write_atomically(marker, content)
    except (MissingObjectError, ValueError, TypeError, KeyError) as error:
        return str(error)
    return verify(directory, step)


def write_note(run_dir: Path, folders: Collection[str] | None) -> None:
    """Note the folders of the checkpoints that the store has; None: none need wait for it.

    Not their steps: one that is recomputed after a rollback is another checkpoint.
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
        beat: called about once a second: this takes as long as the upload.
        is_stopping: whether a stop was requested, which ends the wait.
        warn: called once, after a minute, with what is awaited.
    """
    directory = run_dir / CHECKPOINTS
    newest = max(committed_steps(directory), default=None)
    if newest is None:
        return
    folder = checkpoint_folder(directory, newest)
    polls = 0
    while {_AWAY, folder}.isdisjoint(_read(run_dir).split()) and not is_stopping():
        time.sleep(_POLL_SECS)
        polls += 1
        if polls % _BEAT_POLLS == 0:
            beat()
        if polls == _WARN_POLLS:
            warn(f"warning: the next checkpoint waits for the upload of that of step {newest}")


def is_away(run_dir: Path) -> bool:
    """Return whether the store has failed for so long that the run continues without it."""
    return _read(run_dir) == _AWAY


def _read(run_dir: Path) -> str:
    try:
        return read_text(run_dir / _NOTE)
    except (FileNotFoundError, DamagedError):
        return ""
