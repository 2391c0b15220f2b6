"""The object store at an address."""

from __future__ import annotations

from trainer.config import addresses
from trainer.runs.object_store import Store


def open_store(address: str) -> Store:
    """Return the store at an address, which `addresses.problem` has accepted.

    Raises:
        StoreError: there are no credentials, for example.
    """
    scheme, place, path = addresses.split(address)
    if scheme == "s3":
        from trainer.runs.s3_store import S3Store  # imports its client, an optional package

        return S3Store(place, path)
    if scheme == "hdfs":
        from trainer.runs.hdfs_store import HdfsStore

        return HdfsStore(place, path)
    from trainer.runs.gcs_store import GcsStore

    return GcsStore(place, path)
