"""The object store at an address."""

from __future__ import annotations

from trainer.config import addresses
from trainer.store.object_store import Store


def open_store(address: str) -> Store:
    """Return the store at an address, which `addresses.problem` has accepted.

    Raises:
        StoreError: there are no credentials, for example.
    """
    scheme, bucket, path = addresses.split(address)
    if scheme == "s3":
        from trainer.store.s3_store import S3Store  # imports its client, an optional package

        return S3Store(bucket, path)
    from trainer.store.gcs_store import GcsStore

    return GcsStore(bucket, path)
