"""Objects in Amazon S3, and in services with its protocol and conditional writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from boto3.exceptions import Boto3Error
from botocore import exceptions
from botocore.config import Config

from trainer.store.object_store import ConflictError, MissingObjectError, StoreError

_MISSING = {"NoSuchKey", "404"}
_CONFLICT = {"PreconditionFailed", "ConditionalRequestConflict", "412"}
_TEMPORARY = {
    "SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "Throttling", "BadDigest",
    "IncompleteBody", "NoSuchUpload",
}  # fmt: skip
_PERMANENT = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.ParamValidationError,
    exceptions.NoRegionError,
)
_CONNECT_TIMEOUT_SECS = 10
_READ_TIMEOUT_SECS = 60
_DELETE_LIMIT = 1000  # of one request, by the protocol


class S3Store:
    """The objects of a bucket below a path; see `trainer.store.object_store.Store`.

    Endpoint and credentials are those of the AWS configuration of this process.
    """

    requires = ("boto3", "steadfast-trainer[s3]")

    def __init__(self, bucket: str, path: str) -> None:
        self._bucket = bucket
        self._prefix = f"{path}/" if path else ""
        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_SECS,
            read_timeout=_READ_TIMEOUT_SECS,
            retries={"total_max_attempts": 2, "mode": "standard"},  # `retry` continues
        )
        with _errors(f"s3://{bucket}"):
            try:
                self._client = boto3.client("s3", config=config)
            except ValueError as error:  # such as a wrong endpoint
                raise StoreError(f"s3://{bucket}: {error}", is_temporary=False) from error

    def read(self, name: str) -> tuple[bytes, str]:
        with _errors(name):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            return answer["Body"].read(), answer["ETag"]

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            with _errors(name):
                answer = self._client.put_object(
                    Bucket=self._bucket, Key=self._prefix + name, Body=content, **condition
                )
        except MissingObjectError:
            raise ConflictError(name) from None
        version = answer["ETag"]
        assert isinstance(version, str)
        return version

    def upload(self, path: Path, name: str) -> None:
        key = self._prefix + name
        size = path.stat().st_size
        with _errors(name):
            # The client sends checksums, which the server compares.
            self._client.upload_file(str(path), self._bucket, key)
            stored = self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
        if stored < size:  # the file of a log may have grown
            raise StoreError(f"{name} has {stored} bytes instead of {size}")

    def download(self, name: str, path: Path) -> None:
        with _errors(name):
            self._client.download_file(self._bucket, self._prefix + name, str(path))

    def names(self, prefix: str) -> list[str]:
        with _errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return [key.removeprefix(self._prefix) for key in keys]

    def folders(self) -> list[str]:
        with _errors(self._prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            prefixes = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])]
        return sorted(folder.removeprefix(self._prefix).rstrip("/") for folder in prefixes)

    def delete(self, names: Iterable[str]) -> None:
        keys = [{"Key": self._prefix + name} for name in names]
        for start in range(0, len(keys), _DELETE_LIMIT):
            with _errors(keys[start]["Key"]):
                answer = self._client.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": keys[start : start + _DELETE_LIMIT], "Quiet": True},
                )
                for item in answer.get("Errors", []):  # in an answer that is a success
                    raise exceptions.ClientError({"Error": item}, f"DeleteObjects({item['Key']})")


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except exceptions.ClientError as error:
        raise _answered(name, error) from error
    except _PERMANENT as error:
        raise StoreError(f"{name}: {error}", is_temporary=False) from error
    except (exceptions.BotoCoreError, Boto3Error, ValueError) as error:
        if isinstance(error.__context__, exceptions.ClientError):  # of an upload
            raise _answered(name, error.__context__) from error
        # A ValueError: the connection ended within a header.
        raise StoreError(f"{name}: {error}") from error


def _answered(name: str, error: exceptions.ClientError) -> StoreError:
    code = error.response["Error"].get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _MISSING:
        return MissingObjectError(name)
    if code in _CONFLICT:
        return ConflictError(name)
    return StoreError(f"{name}: {error}", is_temporary=status >= 500 or code in _TEMPORARY)
