"""The record of a run in an object store, read without taking the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.files import parse_json
from trainer.store.lease import read_manifest
from trainer.store.object_store import MissingObjectError, Store, StoreError, open_store, retry
from trainer.store.remote_files import file_object

_RETRY_SECS = 30.0
_RECORD = ("run.json", "result.json", "dataset.json")
"""What a process that is not the chief reads of the run, besides the checkpoint."""


def read_remote(address: str) -> dict[str, Any]:
    """Return run.json of the run at an address.

    Raises:
        ConfigError: there is no run, or it cannot be read.
    """

    def read() -> bytes:
        store = open_store(address)
        manifest, _ = read_manifest(store)
        if not manifest.has_run:
            raise ConfigError(
                f"resume ({address}): no run there: no manifest.json that names a run; "
                "give the address of a run, as the command that trained it has printed it"
            )
        return store.read(file_object(manifest, "run.json"))[0]

    try:
        content = retry(read, _RETRY_SECS)
    except StoreError as error:
        raise ConfigError(
            f"resume ({address}) cannot be read: {error}; check address and credentials"
        ) from error
    return parse_json(content, f"{address}/run.json")


def download_record(store: Store, path: Path) -> None:
    """Make the record of a run in a folder what it is in the store.

    Raises:
        StoreError: the store fails.
    """
    path.mkdir(parents=True, exist_ok=True)
    manifest, _ = read_manifest(store)
    for name in _RECORD:
        file = path / name
        file.unlink(missing_ok=True)
        if name in manifest.files:
            try:
                store.download(file_object(manifest, name), file)
            except MissingObjectError as error:
                raise StoreError(f"{name} was replaced while it was read") from error
