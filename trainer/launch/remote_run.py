"""A run whose directory is in an object store: brought to this machine, and mirrored there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, ConfigError, DamagedError, StorageError
from trainer.files import Lock, LockedError, read_json, write_json, writing
from trainer.launch.display import Lines
from trainer.launch.run_context import when_free
from trainer.runs.directory import RunInUseError
from trainer.runs.identity import joined_path, run_address, run_path
from trainer.store import remote_files
from trainer.store.lease import BEATS, Lease, LeaseHeldError, is_renewed, read_manifest
from trainer.store.mirror import Mirror
from trainer.store.object_store import Store, StoreError, open_store, retry
from trainer.store.remote_view import download_record, download_records
from trainer.strategies.strategy import Strategy

_LOCK_WAIT_SECS = 5.0
_POLL_SECS = 0.1
_QUIET_SECS = 2.0  # most uploads take less, and are not worth a line


class _StoppedError(Exception):
    """A stop was requested before the run could begin."""


class _LeftError(Exception):
    """The user leaves immediately."""


def check(experiment: Experiment, strategy: Strategy, declared: str | None) -> None:
    """Refuse what needs one folder for all machines of a cluster.

    Args:
        declared: who declares the cluster, such as TF_CONFIG; None: its processes are local.

    Raises:
        ConfigError: the cluster is declared, and does more than synchronous training.
    """
    address = run_address(experiment)
    if address is None or declared is None:
        return
    reason = None
    if not experiment.trains:
        reason = f"mode ({experiment.mode}) reads it on each; run the mode on one machine"
    elif strategy.service_jobs:
        reason = "the servers of the strategy use it; use strategy=multi_worker"
    elif experiment.env is not None:
        reason = "the actors of env use it; train on one machine"
    elif experiment.evaluate.sidecar and declared == "TF_CONFIG":
        reason = "the evaluator of TF_CONFIG reads it; add evaluate.sidecar=false"
    if reason is not None:
        raise ConfigError(
            f"runs_dir ({address}) is in an object store, and the processes of a declared cluster "
            f"({declared}) have no folder in common: {reason}, or use a shared folder"
        )


class RemoteRun:
    """A run in a store, and its folder on this machine; or the folder of a sweep.

    A note next to the folder has the number of the lease under which the folder was last used, and
    its holders on this machine, which have ended when the lock on the folder is free. A folder of
    the store's last lease has everything that the store has, and perhaps more.

    Args:
        sweep_folder: that of a sweep, which has records alone; None: it is a run.
    """

    def __init__(
        self,
        experiment: Experiment,
        address: str,
        cluster: Cluster,
        console: Lines,
        requests: StopRequests,
        sweep_folder: Path | None = None,
    ) -> None:
        self._experiment = experiment
        self._options = experiment.store
        self._address = address
        self._is_chief = cluster.is_chief
        self._console = console
        self._requests = requests
        self._is_run = sweep_folder is None
        self._path = sweep_folder or (
            run_path(experiment)
            if cluster.is_chief
            else joined_path(experiment, str(cluster.process_id))
        )
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self._told: str | None = None

    def run(self, run: Callable[[], int]) -> int:
        """Bring the run before, and mirror it meanwhile.

        The chief alone does that. The command of another process brings the record of the run, and
        its worker the checkpoints that the chief restores.

        Raises:
            ConfigError: another process uses the run, it must not be continued, or the store
                refuses.
            StorageError: the store cannot be reached.
        """
        lock = when_free(self._lock, self._console, self._requests)
        if lock is None:
            return 128 + self._requests.number
        try:
            return self._run_mirrored(run) if self._is_chief else self._run_beside_chief(run)
        except _StoppedError:
            return 128 + self._requests.number
        except StoreError as error:
            raise _error(self._address, error) from error
        finally:
            lock.close()

    def _run_mirrored(self, run: Callable[[], int]) -> int:
        mirror = self._start()
        code = CRASHED
        try:
            code = run()
        finally:
            problem = self._wait_for_upload(mirror)
            if problem is not None:
                code = CRASHED
                self._console.error(
                    f"{self._address}: {problem}; what it lacks is in {self._path}, and the same "
                    "command on this machine uploads it unless another host has continued it"
                )
        return code

    def _run_beside_chief(self, run: Callable[[], int]) -> int:
        """Bring what a process that is not the chief reads of the run, and run it."""
        store = open_store(self._address)
        retry(lambda: download_record(store, self._path), self._options.retry_secs, self._sleep)
        code = run()
        if code > 128:  # stopped
            with suppress(StoreError, _LeftError):  # the chief reports on the store
                self._wait_for_chief()
        return code

    def _start(self) -> Mirror:
        """Take the run, bring it to this machine, and return what mirrors it from now on."""
        store = open_store(self._address)
        secs = self._options.retry_secs
        lease = when_free(
            lambda: retry(lambda: self._acquire(store), secs, self._sleep),
            self._console,
            self._requests,
        )
        if lease is None:
            raise _StoppedError
        mirror = Mirror(
            store,
            lease,
            self._path,
            secs,
            self._console.line,
            lambda: self._requests.request(signal.SIGTERM),
            is_run=self._is_run,
        )
        try:
            mirror.renew_every(self._options.lease_secs / BEATS)
            retry(lambda: self._bring(store, lease), secs, self._sleep)
        except BaseException:
            mirror.abandon()
            raise
        mirror.start()
        return mirror

    def _wait_for_upload(self, mirror: Mirror) -> str | None:
        """Wait until the store has everything, unless the user leaves; return what it lacks."""
        tell_at = time.monotonic() + _QUIET_SECS
        last_text = ""
        while not mirror.end(_POLL_SECS):
            self._requests.drain()
            if self._requests.is_leaving:
                return mirror.leave()
            text = f"Uploading to {self._address}."
            if self._requests.number:
                name = signal.Signals(self._requests.number).name
                hint = self._requests.hint()
                text = f"{name}: uploading to {self._address}, then exiting{hint}."
            if text != last_text and time.monotonic() >= tell_at:
                self._console.line(text)
                last_text = text
        return mirror.finish()

    def _wait_for_chief(self) -> None:
        """Wait until the chief has uploaded what it has saved, unless the user leaves.

        A scheduler may end all processes of a job soon after the first has left: `srun` with
        `--kill-on-bad-exit` kills them after half a minute. The chief gives up its lease when the
        store has everything. If it is killed, or cannot reach the store, its lease is silent.
        """

        def sleep(secs: float) -> None:
            time.sleep(secs)
            self._requests.drain()
            if self._requests.is_leaving:
                raise _LeftError

        options = self._options
        store = open_store(self._address)
        chief = retry(lambda: read_manifest(store)[0], options.retry_secs, sleep)
        if not chief.is_free:
            hint = self._requests.hint()
            self._console.line(f"Waiting until the chief has uploaded to {self._address}{hint}.")

        def is_uploading() -> bool:
            manifest, version = read_manifest(store)
            is_same = (manifest.holder, manifest.is_free) == (chief.holder, False)
            return is_same and is_renewed(store, version, options.lease_secs, sleep)

        while retry(is_uploading, options.retry_secs, sleep):
            pass

    def _sleep(self, secs: float) -> None:
        if self._requests.wait(secs):
            raise _StoppedError

    def _lock(self) -> Lock:
        try:
            with writing(self._path.parent):
                return Lock.acquire(_work_lock(self._path), _LOCK_WAIT_SECS)
        except LockedError as error:
            holder = f"another process of this machine (pid {error.holder})"
            raise RunInUseError(self._address, holder) from None

    def _acquire(self, store: Store) -> Lease:
        number, holders = _read_note(self._path)
        if self._experiment.resume == "never" and read_manifest(store)[0].has_run:
            raise ConfigError(
                f"resume (never): {self._address} has a run, which is not moved; choose another "
                "name=<name>, or remove it"
            )
        if self._holder not in holders:
            holders.append(self._holder)
            self._write_note(number, holders)
        secs = self._options.lease_secs

        def tell(holder: str) -> None:
            if holder != self._told:
                self._told = holder
                self._console.line(
                    f"{self._address} was used by {holder} last (host, process), which has not "
                    f"given it up; taking over if it stays silent for {secs:g} s"
                )

        try:
            return Lease.acquire(store, self._holder, holders, secs, tell, self._sleep)
        except LeaseHeldError as error:
            raise RunInUseError(self._address, f"{error.holder} (host, process)") from error

    def _bring(self, store: Store, lease: Lease) -> None:
        """Make the folder on this machine what the store has."""
        number, _ = _read_note(self._path)
        before = lease.before
        if number != before.number or not self._path.is_dir():
            parts = self._path.with_name(f"{self._path.name}.part")
            for folder in (parts, self._path):
                shutil.rmtree(folder, ignore_errors=True)
            if before.files:
                began = time.monotonic()
                problems = remote_files.download(store, before, parts)
                parts.rename(self._path)
                secs = time.monotonic() - began
                self._console.line(f"Downloaded {self._address} to {self._path} in {secs:.1f} s.")
                for problem in problems:
                    self._console.line(f"warning: {problem}")
        self._write_note(lease.manifest.number, [self._holder])

    def _write_note(self, number: int, holders: list[str]) -> None:
        write_json(_note(self._path), {"number": number, "holders": holders})


def download_missing_records(experiment: Experiment) -> None:
    """Download the records of a run in a store, but no weights, unless its folder here is as new.

    Its own command then downloads the rest.

    Raises:
        ConfigError: the store refuses.
        StorageError: the store cannot be reached.
    """
    address = run_address(experiment)
    if address is None:
        return
    path = run_path(experiment)

    def download() -> None:
        store = open_store(address)
        manifest, _ = read_manifest(store)
        if manifest.number != _read_note(path)[0]:
            shutil.rmtree(path, ignore_errors=True)
            if manifest.files:
                download_records(store, manifest, path)

    try:
        with writing(path.parent):
            lock = Lock.acquire(_work_lock(path))
    except LockedError:
        return  # a process of this machine uses it
    try:
        with closing(lock):
            retry(download, experiment.store.retry_secs)
    except StoreError as error:
        raise _error(address, error) from error


def _error(address: str, error: StoreError) -> ConfigError | StorageError:
    if error.is_temporary:
        return StorageError(f"{address} cannot be reached: {error}")
    return ConfigError(f"{address} cannot be used: {error}; check address and credentials")


def _work_lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.work.lock")


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.lease.json")


def _read_note(path: Path) -> tuple[int, list[str]]:
    """Return the number of the last lease of a folder, -1 if it had none, and its holders."""
    try:
        note = read_json(_note(path))
        return note["number"], note["holders"]
    except (FileNotFoundError, DamagedError, KeyError):
        return -1, []
