"""A run whose directory is in an object store: brought to this machine, and mirrored there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from trainer.cluster.spec import Cluster
from trainer.cluster.stop_requests import StopRequests
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, ConfigError, DamagedError, StorageError
from trainer.files import Lock, LockedError, read_json, write_json, writing
from trainer.launch import last_upload
from trainer.launch.display.console import Console
from trainer.launch.run_opening import when_free
from trainer.runs.directory import RunInUseError
from trainer.runs.identity import joined_path, run_address, run_path
from trainer.store import remote_files
from trainer.store.lease import BEATS, Lease, LeaseHeldError, read_manifest
from trainer.store.mirror import Mirror
from trainer.store.object_store import Store, StoreError, open_store, retry
from trainer.store.remote_view import download_record
from trainer.strategies.strategy import Strategy

_LOCK_WAIT_SECS = 5.0


class _StoppedError(Exception):
    """A stop was requested before the run could begin.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def check(experiment: Experiment, strategy: Strategy, declared: str | None) -> None:
    """Refuse what needs one folder for all machines of a cluster.

    Args:
        experiment: the checked configuration.
        strategy: its strategy.
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


def mirrored(
    experiment: Experiment,
    address: str,
    cluster: Cluster,
    console: Console,
    requests: StopRequests,
    run: Callable[[], int],
) -> int:
    """Run an experiment in a store: bring its run before, and mirror it meanwhile.

    The chief alone does that. The command of another process brings the record of the run, and its
    worker the checkpoints that the chief restores.

    Args:
        experiment: the checked configuration.
        address: where its run is.
        cluster: the cluster as this process sees it.
        console: shows messages.
        requests: a stop among them ends the wait for the store.
        run: runs it in its directory on this machine; returns the exit code.

    Returns:
        The exit code.

    Raises:
        ConfigError: another process uses the run, it must not be continued, or the store refuses.
        StorageError: the store cannot be reached.
    """
    is_chief = cluster.is_chief
    path = run_path(experiment) if is_chief else joined_path(experiment, str(cluster.process_id))
    lock = when_free(lambda: _lock(path, address), console, requests)
    if lock is None:
        return 128 + requests.number
    try:
        if is_chief:
            mirror = _start(experiment, address, path, console, requests)
            return _run_mirrored(mirror, address, path, console, requests, run)
        return _run_beside_chief(experiment, address, path, console, requests, run)
    except _StoppedError as stopped:
        return 128 + stopped.number
    except StoreError as error:
        if error.is_temporary:
            raise StorageError(f"{address} cannot be reached: {error}") from error
        raise ConfigError(
            f"{address} cannot be used: {error}; check address and credentials"
        ) from error
    finally:
        lock.close()


def _run_mirrored(
    mirror: Mirror,
    address: str,
    path: Path,
    console: Console,
    requests: StopRequests,
    run: Callable[[], int],
) -> int:
    """Run an experiment, then wait until the store has everything; return the exit code."""
    code = CRASHED
    try:
        code = run()
    finally:
        is_uploaded = last_upload.finish(mirror, address, path, console, requests)
    return code if is_uploaded else CRASHED


def _start(
    experiment: Experiment, address: str, path: Path, console: Console, requests: StopRequests
) -> Mirror:
    """Take the run, bring it to this machine, and return what mirrors it from now on."""
    sleep = _sleeper(requests)
    options = experiment.store
    store = open_store(address)
    arrival = _Arrival(store, address, path, experiment, console, sleep)
    lease = when_free(lambda: retry(arrival.acquire, options.retry_secs, sleep), console, requests)
    if lease is None:
        raise _StoppedError(requests.number)
    mirror = Mirror(
        store,
        lease,
        path,
        options.retry_secs,
        console.line,
        lambda: requests.request(signal.SIGTERM),
    )
    try:
        mirror.renew_every(options.lease_secs / BEATS)
        retry(lambda: arrival.bring(lease), options.retry_secs, sleep)
    except BaseException:
        mirror.abandon()
        raise
    mirror.start()
    return mirror


def _run_beside_chief(
    experiment: Experiment,
    address: str,
    path: Path,
    console: Console,
    requests: StopRequests,
    run: Callable[[], int],
) -> int:
    """Bring what a process that is not the chief reads of the run, and run it."""
    store = open_store(address)
    secs = experiment.store.retry_secs
    retry(lambda: download_record(store, path), secs, _sleeper(requests))
    code = run()
    if code > 128:  # stopped
        last_upload.wait_for_chief(experiment, address, console, requests)
    return code


def _sleeper(requests: StopRequests) -> Callable[[float], None]:
    """Return a function that waits for seconds, and raises an error if a stop is requested."""

    def sleep(secs: float) -> None:
        if number := requests.wait(secs):
            raise _StoppedError(number)

    return sleep


def _lock(path: Path, address: str) -> Lock:
    try:
        with writing(path.parent):
            return Lock.acquire(path.with_name(f"{path.name}.work.lock"), _LOCK_WAIT_SECS)
    except LockedError as error:
        holder = f"another process of this machine (pid {error.holder})"
        raise RunInUseError(address, holder) from None


class _Arrival:
    """Takes the lease of a run, and makes its folder on this machine what the store has.

    A note beside the folder has the number of the lease under which the folder was last used, and
    its holders on this machine. Who has the lock on the folder knows that these have ended. And a
    folder of the store's last lease has everything that the store has, and perhaps more.
    """

    def __init__(
        self,
        store: Store,
        address: str,
        path: Path,
        experiment: Experiment,
        console: Console,
        sleep: Callable[[float], None],
    ) -> None:
        self._store = store
        self._address = address
        self._path = path
        self._experiment = experiment
        self._console = console
        self._sleep = sleep
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self._note = path.with_name(f"{path.name}.lease.json")
        self._told: str | None = None

    def acquire(self) -> Lease:
        number, holders = self._read_note()
        if self._experiment.resume == "never" and read_manifest(self._store)[0].has_run:
            raise ConfigError(
                f"resume (never): {self._address} has a run, which is not moved; choose another "
                "name=<name>, or remove it"
            )
        if self._holder not in holders:
            holders.append(self._holder)
            self._write_note(number, holders)
        try:
            return Lease.acquire(
                self._store,
                self._holder,
                holders,
                self._experiment.store.lease_secs,
                self._tell,
                self._sleep,
            )
        except LeaseHeldError as error:
            raise RunInUseError(self._address, f"{error.holder} (host, process)") from error

    def bring(self, lease: Lease) -> None:
        number, _ = self._read_note()
        before = lease.before
        if number != before.number or not self._path.is_dir():
            parts = self._path.with_name(f"{self._path.name}.part")
            for folder in (parts, self._path):
                shutil.rmtree(folder, ignore_errors=True)
            if before.has_run:
                began = time.monotonic()
                problems = remote_files.download(self._store, before, parts)
                parts.rename(self._path)
                secs = time.monotonic() - began
                self._console.line(f"Brought {self._address} to {self._path} in {secs:.1f} s.")
                for problem in problems:
                    self._console.line(f"warning: {problem}")
        self._write_note(lease.manifest.number, [self._holder])

    def _tell(self, holder: str) -> None:
        if holder == self._told:
            return
        self._told = holder
        secs = self._experiment.store.lease_secs
        self._console.line(
            f"{self._address} was used by {holder} last (host, process), which has not given it "
            f"up; taking over if it stays silent for {secs:g} s"
        )

    def _read_note(self) -> tuple[int, list[str]]:
        try:
            note = read_json(self._note)
            return note["number"], note["holders"]
        except (FileNotFoundError, DamagedError, KeyError):
            return -1, []

    def _write_note(self, number: int, holders: list[str]) -> None:
        write_json(self._note, {"number": number, "holders": holders})
