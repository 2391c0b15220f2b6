"""Keeps the objects of a run in a store as its folder on this machine is."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainer.runs.checkpoint_marker import committed_steps, marker_file
from trainer.runs.directory import SWEEP_SUMMARY
from trainer.store import remote_files
from trainer.store.lease import Lease, LeaseLostError, Manifest
from trainer.store.object_store import Store, StoreError
from trainer.store.remote_files import CHECKPOINTS, write_note

_POLL_SECS = 0.1
_FILES_SECS = 30.0  # between two uploads of logs and metrics while there is no new checkpoint
_SWEEP_SECS = 5.0  # the same for the log of a search, by which it decides
_GROWTH = 1.25
"""A file that grows is uploaded again when it is so many times as large: in all at most six times
its final size, and if this machine is lost, the store lacks at most a fifth of the file."""
_SMALL_BYTES = 64 << 10
"""A file up to this size is uploaded whenever it has changed."""
_FIRST_PAUSE_SECS = 0.5
_LONGEST_PAUSE_SECS = 30.0


class Mirror:
    """Uploads what a run writes, while it runs, and renews its lease.

    Args:
        retry_secs: how long the store may fail before the run continues without it.
        is_run: whether the folder is that of a run; else of a sweep, which has records alone.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        path: Path,
        retry_secs: float,
        warn: Callable[[str], None],
        on_loss: Callable[[], None],
        *,
        is_run: bool = True,
    ) -> None:
        self._store = store
        self._lease = lease
        self._path = path
        self._retry_secs = retry_secs
        self._warn = warn
        self._on_loss = on_loss
        self._is_run = is_run
        self._staged = path.with_name(f"{path.name}.staged")
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._folders: dict[int, tuple[int, str]] = {}
        self._ending = threading.Event()
        self._has_left = threading.Event()
        self._ended = threading.Event()
        self._problem: str | None = None
        self._lost: LeaseLostError | None = None
        self._threads: list[threading.Thread] = []

    def renew_every(self, secs: float) -> None:
        """Renew the lease regularly from now on."""
        thread = threading.Thread(target=self._renew, args=(secs,), daemon=True, name="lease")
        self._begin(thread)

    def start(self) -> None:
        """Upload what the run writes from now on."""
        self._note()
        self._begin(threading.Thread(target=self._upload_changes, daemon=True, name="upload"))

    def abandon(self) -> None:
        """Give up the lease of a run that has not begun."""
        self._ended.set()
        self._join()
        with suppress(StoreError, LeaseLostError):  # it then ends by itself
            self._lease.release()

    def _begin(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def end(self, secs: float) -> bool:
        """Upload what is left; return whether that has ended, as soon as it has, within `secs`."""
        self._ending.set()
        return self._ended.wait(secs)

    def leave(self) -> str:
        """End without waiting for the store; return what it may lack and why."""
        self._has_left.set()
        self._ended.set()
        return f"left before everything was uploaded; {self._has()}"

    def finish(self) -> str | None:
        """Upload the rest and give up the lease; return what the store lacks and why, or None."""
        self._ending.set()
        self._join()
        shutil.rmtree(self._staged, ignore_errors=True)
        if self._lost is not None:
            by = f"{self._lost.holder} has taken over" if self._lost.holder else str(self._lost)
            return f"the run is no longer this command's: {by}"
        if self._problem is None:
            with suppress(StoreError, LeaseLostError):  # it then ends by itself
                self._lease.release()
        return self._problem

    def _upload_changes(self) -> None:
        try:
            self._upload_until_end()
        finally:
            self._ended.set()

    def _upload_until_end(self) -> None:
        files_secs = _FILES_SECS if self._is_run else _SWEEP_SECS
        files_at = time.monotonic() + files_secs
        failing_since: float | None = None
        pause = _FIRST_PAUSE_SECS
        while self._lost is None and not self._has_left.is_set():
            is_last = self._ending.wait(_POLL_SECS)
            try:
                # Before the first checkpoint the run may still be taken back.
                may_upload = bool(self._lease.manifest.checkpoints) or not self._is_run
                is_due = may_upload and time.monotonic() >= files_at
                if not (is_last or is_due or self._missing()):
                    continue
                self._upload()
            except LeaseLostError as error:
                self._lose(error)
            except Exception as error:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                is_temporary = getattr(error, "is_temporary", isinstance(error, OSError))
                if not is_temporary or now - failing_since >= self._retry_secs:
                    self._give_up(error)
                    if is_last:
                        break
                (self._has_left if is_last else self._ending).wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECS)
            else:
                self._problem = failing_since = None
                pause = _FIRST_PAUSE_SECS
                files_at = time.monotonic() + files_secs
                if is_last:
                    break

    def _upload(self) -> None:
        """Upload the missing checkpoints, the newest first, and the changed files."""
        if not (self._path / ("config.yaml" if self._is_run else SWEEP_SUMMARY)).is_file():
            return  # taken back, or removed by hand: that is no reason to remove objects
        for step in sorted(self._missing(), reverse=True):
            folder = remote_files.stage_checkpoint(self._path / CHECKPOINTS, step, self._staged)
            if folder is None:
                continue  # retention was faster
            remote_files.upload_checkpoint(self._store, self._staged, step, folder)
            self._commit({step: folder})
        self._commit({})

    def _commit(self, new: Mapping[int, str]) -> None:
        """Upload the changed files, then commit them with new checkpoints; remove what is gone."""
        number = self._lease.manifest.number
        files = dict(self._lease.manifest.files)
        local = dict(remote_files.run_files(self._path))
        sizes = {}
        for name, file in local.items():
            with suppress(FileNotFoundError):
                stat = file.stat()
                last, now = self._uploaded.get(name), (stat.st_size, stat.st_mtime_ns)
                # The curves reach as far as the checkpoint.
                is_needed = (
                    self._ending.is_set() or not self._is_run or (bool(new) and "/" not in name)
                )
                if last is None or (last != now and (is_needed or _is_due(last[0], now[0]))):
                    self._store.upload(file, f"files/{number}/{name}")
                    files[name] = number
                    last = now
                sizes[name] = last
        files = {name: files[name] for name in local if name in files}
        kept = set(committed_steps(self._path / CHECKPOINTS))

        def change(manifest: Manifest) -> Manifest:
            checkpoints = {**manifest.checkpoints, **new}
            retained = {step: name for step, name in checkpoints.items() if step in kept}
            # The folder may be ahead by more than it retains: what it has now is still to come.
            return replace(manifest, checkpoints=retained or checkpoints, files=files)

        before = self._lease.manifest
        if new or any(
            getattr(change(before), name) != getattr(before, name)
            for name in ("checkpoints", "files")
        ):
            self._lease.change(change)
            self._remove(before, self._lease.manifest)
        self._uploaded = sizes
        self._note()

    def _remove(self, before: Manifest, now: Manifest) -> None:
        """Remove the objects that the manifest names no longer."""
        gone = [
            remote_files.file_object(before, name)
            for name, number in before.files.items()
            if now.files.get(name) != number
        ]
        with suppress(StoreError):  # they block nothing
            for folder in set(before.checkpoints.values()) - set(now.checkpoints.values()):
                gone += self._store.names(f"{CHECKPOINTS}/{folder}/")
            self._store.delete(gone)

    def _missing(self) -> list[int]:
        directory = self._path / CHECKPOINTS
        uploaded = self._lease.manifest.checkpoints
        missing = []
        for step in committed_steps(directory):
            with suppress(FileNotFoundError):  # retention was faster
                if uploaded.get(step) != self._folder(directory, step):
                    missing.append(step)
        return missing

    def _folder(self, directory: Path, step: int) -> str:
        """Return the folder of a checkpoint's objects; a marker is read once."""
        changed_at = marker_file(directory, step).stat().st_mtime_ns
        if self._folders.get(step, (0, ""))[0] != changed_at:
            folder = remote_files.checkpoint_folder(directory, step)
            self._folders[step] = (changed_at, folder)
        return self._folders[step][1]

    def _note(self) -> None:
        if self._path.is_dir():
            write_note(self._path, self._lease.manifest.checkpoints.values())

    def _has(self) -> str:
        newest = max(self._lease.manifest.checkpoints, default=None)
        return f"its newest checkpoint is of step {newest}" if newest else "it has no checkpoint"

    def _give_up(self, error: Exception) -> None:
        """Let the run continue without the store, which is tried again."""
        why = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        is_new = self._problem is None
        self._problem = f"the store cannot be written ({why}); {self._has()}"
        if self._path.is_dir():
            write_note(self._path, None)
        if is_new and not self._ending.is_set():
            self._warn(f"warning: {self._problem}; the run continues in {self._path}")

    def _lose(self, error: LeaseLostError) -> None:
        if self._lost is None:
            self._lost = error
            if self._path.is_dir():
                write_note(self._path, None)
            self._on_loss()

    def _renew(self, every_secs: float) -> None:
        while not self._ended.wait(every_secs):
            try:
                self._lease.renew()
            except LeaseLostError as error:
                self._lose(error)
                return
            except StoreError:
                continue  # the upload warns the user
            except Exception as error:
                self._give_up(error)


def _is_due(uploaded: int, size: int) -> bool:
    """Return whether a changed file is uploaded again, given its sizes then and now."""
    return size <= max(uploaded, _SMALL_BYTES) or size >= _GROWTH * uploaded
