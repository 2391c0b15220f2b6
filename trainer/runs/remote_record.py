"""The record of a run in an object store, read without taking the run."""

from __future__ import annotations

import json
from typing import Any

from trainer.errors import ConfigError
from trainer.runs.lease import read_manifest
from trainer.runs.object_store import StoreError, retry
from trainer.runs.remote_files import file_object
from trainer.runs.stores import open_store

_RETRY_SECS = 30.0


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
        record: dict[str, Any] = json.loads(retry(read, _RETRY_SECS))
    except (StoreError, ValueError) as error:
        raise ConfigError(
            f"resume ({address}) cannot be read: {error}; check bucket and credentials"
        ) from error
    return record
