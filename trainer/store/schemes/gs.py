"""Objects in Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption

from trainer.store.object_store import ConflictError, MissingObjectError, StoreError

_REQUEST: dict[str, Any] = {"timeout": 60, "retry": None}


class GsStore:
    """The objects of a bucket below a path; see `trainer.store.object_store.Store`.

    Credentials are the application default credentials of this process.
    """

    requires = ("google.cloud.storage", "steadfast-trainer[gcs]")

    def __init__(self, bucket: str, path: str) -> None:
        self._prefix = f"{path}/" if path else ""
        with _errors(f"gs://{bucket}"):
            self._bucket = storage.Client().bucket(bucket)

    def read(self, name: str) -> tuple[bytes, str]:
        with _errors(name):
            blob = self._blob(name)
            blob.reload(**_REQUEST)
            version = blob.generation
            try:
                content = blob.download_as_bytes(if_generation_match=version, **_REQUEST)
            except (exceptions.PreconditionFailed, exceptions.NotFound):
                raise StoreError(f"{name} was replaced while it was read") from None
            return content, str(version)

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        try:
            with _errors(name):
                blob = self._blob(name)
                # Generation 0: there is no object.
                generation = int(version or 0)
                blob.upload_from_string(content, if_generation_match=generation, **_REQUEST)
                return str(blob.generation)
        except MissingObjectError:
            raise ConflictError(name) from None

    def upload(self, path: Path, name: str) -> None:
        with _errors(name):
            size = path.stat().st_size
            with path.open("rb") as file:
                self._blob(name).upload_from_file(file, size=size, checksum="auto", **_REQUEST)

    def download(self, name: str, path: Path) -> None:
        with _errors(name):
            self._blob(name).download_to_filename(str(path), **_REQUEST)

    def names(self, prefix: str) -> list[str]:
        with _errors(prefix):
            blobs = self._bucket.list_blobs(prefix=self._prefix + prefix, **_REQUEST)
            return [blob.name.removeprefix(self._prefix) for blob in blobs]

    def folders(self) -> list[str]:
        with _errors(self._prefix):
            blobs = self._bucket.list_blobs(prefix=self._prefix, delimiter="/", **_REQUEST)
            for _ in blobs:  # the folders are known when all pages were read
                pass
            return sorted(name.removeprefix(self._prefix).rstrip("/") for name in blobs.prefixes)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                with _errors(name):
                    self._blob(name).delete(**_REQUEST)
            except MissingObjectError:
                continue

    def _blob(self, name: str) -> storage.Blob:
        return self._bucket.blob(self._prefix + name)


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except exceptions.NotFound as error:
        raise MissingObjectError(name) from error
    except exceptions.PreconditionFailed as error:
        raise ConflictError(name) from error
    except exceptions.ClientError as error:
        temporary = isinstance(error, exceptions.TooManyRequests) or error.code == 408
        raise StoreError(f"{name}: {error}", is_temporary=temporary) from error
    except GoogleAuthError as error:
        raise StoreError(f"{name}: {error}", is_temporary=False) from error
    except DataCorruption as error:
        raise StoreError(f"{name} was damaged on the way") from error
    except (exceptions.GoogleAPIError, requests.RequestException) as error:
        raise StoreError(f"{name}: {error}") from error
