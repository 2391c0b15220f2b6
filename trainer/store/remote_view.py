"""A run in an object store, read without taking it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from trainer.config import addresses
from trainer.config.schema import Store as StoreOptions
from trainer.errors import ConfigError
from trainer.files import Lock, parse_json
from trainer.runs.checkpoint_marker import marker_file
from trainer.runs.directory import SWEEP_SUMMARY, lock_file, trained_config
from trainer.store.lease import Manifest, is_renewed, read_manifest
from trainer.store.object_store import MissingObjectError, Store, StoreError, open_store, retry
from trainer.store.remote_files import CHECKPOINTS, file_object

_RETRY_SECS = 30.0
_RECORDS = {".json", ".jsonl", ".yaml", ".txt", ".png"}
_OF_PROCESSES = ("run.json", "result.json", "dataset.json", "adapted.json")
"""What a process that is not the chief reads of the run, in addition to the checkpoint."""
_MOST_NAMES = 5
_T = TypeVar("_T")


def runs_at(command: str, address: str) -> list[str]:
    """Return the addresses of the run at an address, of those of a sweep, or of those below it.

    Raises:
        ConfigError: there is none, or the store cannot be read.
    """

    def find() -> list[str]:
        store = _opened(command, address)
        manifest, _ = read_manifest(store)
        if SWEEP_SUMMARY in manifest.files:
            content, _ = store.read(file_object(manifest, SWEEP_SUMMARY))
            points = [point["run"] for point in parse_json(content, address)["points"]]
            runs = [run for run in points if read_manifest(open_store(run))[0].has_run]
        elif manifest.number:
            runs = [address]
        else:
            names = [name for name in store.folders() if _has_run(store, name)]
            runs = [addresses.join(address, name) for name in names]
        if not runs:
            raise ConfigError(_no_run(command, address))
        return runs

    return _attempt(command, address, find)


@contextmanager
def view(command: str, address: str) -> Iterator[Path]:
    """Bring the records of a run, but no weights, for the block; the run continues undisturbed.

    Its manifest shows whether it is in use, as for a holder that would take it over.

    Yields:
        Their folder on this machine; it is locked if the run is in use.

    Raises:
        ConfigError: there is no run, or the store cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="steadfast-") as folder:
        path = Path(folder) / PurePosixPath(address).name

        def bring() -> tuple[Manifest, bool]:
            store = _opened(command, address)
            manifest, version = read_manifest(store)
            if not manifest.number:
                raise ConfigError(_no_run(command, address))
            download_records(store, manifest, path)
            secs = _lease_secs(path)
            in_use = not manifest.is_free and is_renewed(store, version, secs, time.sleep)
            return manifest, in_use

        manifest, in_use = _attempt(command, address, bring)
        if not manifest.has_run and not in_use:
            raise ConfigError(
                f"{command} ({address}): no run there: its last command has saved nothing"
            )
        # Readers of a run directory see by its lock that it is in use.
        with closing(Lock.acquire(lock_file(path))) if in_use else nullcontext():
            yield path


def read_remote(address: str) -> dict[str, Any]:
    """Return run.json of the run at an address.

    Raises:
        ConfigError: there is no run, or it cannot be read.
    """

    def read() -> bytes:
        store = open_store(address)
        manifest, _ = read_manifest(store)
        if not manifest.has_run:
            raise ConfigError(_no_run("resume", address))
        return store.read(file_object(manifest, "run.json"))[0]

    return parse_json(_attempt("resume", address, read), f"{address}/run.json")


def download_record(store: Store, path: Path) -> None:
    """Copy the record of a run from the store into a folder."""
    path.mkdir(parents=True, exist_ok=True)
    manifest, _ = read_manifest(store)
    for name in _OF_PROCESSES:
        (path / name).unlink(missing_ok=True)
        if name in manifest.files:
            _download_object(store, file_object(manifest, name), path / name)


def _opened(command: str, address: str) -> Store:
    if problem := addresses.problem(command, address):
        raise ConfigError(problem)
    return open_store(address)


def _attempt(command: str, address: str, action: Callable[[], _T]) -> _T:
    try:
        return retry(action, _RETRY_SECS)
    except StoreError as error:
        raise ConfigError(
            f"{command} ({address}) cannot be read: {error}; check address and credentials"
        ) from error


def download_records(store: Store, manifest: Manifest, path: Path) -> None:
    """Bring the records of a run, and the marker of its newest checkpoint."""
    path.mkdir(exist_ok=True)
    # The oldest first, so that their times are in the order of the commands that wrote them.
    names = sorted(filter(_is_record, manifest.files), key=lambda name: manifest.files[name])
    objects = {path / name: file_object(manifest, name) for name in names}
    if manifest.checkpoints:
        step, folder = max(manifest.checkpoints.items())
        marker = marker_file(path / CHECKPOINTS, step)
        objects[marker] = f"{CHECKPOINTS}/{folder}/{marker.name}"
    for file, name in objects.items():
        _download_object(store, name, file)


def _download_object(store: Store, name: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        store.download(name, file)
    except MissingObjectError as error:
        raise StoreError(f"{name} was replaced while it was read") from error


def _is_record(name: str) -> bool:
    path = PurePosixPath(name)
    is_status = path.match("logs/status-*.json")
    return is_status or (len(path.parts) == 1 and path.suffix in _RECORDS)


def _lease_secs(path: Path) -> float:
    """Return after how many seconds of silence the run would be taken over."""
    default = StoreOptions().lease_secs
    try:
        return float(trained_config(path).get("store.lease_secs", default))
    except (OSError, ValueError, TypeError, ConfigError):
        return default


def _has_run(store: Store, name: str) -> bool:
    try:
        return Manifest.decode(store.read(f"{name}/manifest.json")[0]).has_run
    except MissingObjectError:
        return False


def _no_run(command: str, address: str) -> str:
    text = f"{command} ({address}): no run there"
    if folders := open_store(address).folders():
        more = f" and {len(folders) - _MOST_NAMES} more" if len(folders) > _MOST_NAMES else ""
        return f"{text}, but the folders {', '.join(folders[:_MOST_NAMES])}{more}; name one of them"
    return f"{text}; give the address of a run, as the command that trained it has printed it"
