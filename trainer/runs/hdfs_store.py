"""Objects in HDFS, by the REST protocol of its name node (WebHDFS).

HDFS has no conditional replacement. But its name node renames atomically, and never onto a file. So
each version of an object is a file of its own, `<object>.version-<number>`, and the object is the
highest number. To replace version n, a client writes a temporary file and renames it to n + 1:

- Of all who replace a version, one gets the name.
- A file is removed only while there is a higher number, so the highest never falls. While a number
  is the highest, its file stays, and stays the same.
- A lower number that was removed is free again, for a client that was held up before its rename.
  What it makes is no version: it sees the higher number afterwards, and has failed. Readers do not
  take it either: a number counts if it is the highest both before and after its file was read.

A list shows one state of a folder if that has at most 1000 entries (`dfs.ls.limit`); the folder of
a manifest has few. A client that stops before its rename leaves a temporary file, no version.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote
from uuid import uuid4

import requests

from trainer.runs.object_store import ConflictError, MissingObjectError, StoreError

_PORT = 9870
_TIMEOUT_SECS = 60
_TRIES = 5
_PART_BYTES = 1 << 20
_FILE = re.compile(r"(.+)\.(?:version-([0-9]+)|[0-9a-f]{32}\.tmp)")
_TEMPORARY = {"StandbyException", "SafeModeException", "RetriableException", "IOException"}
"""Exceptions of a name node with status 403 that pass; an IOException: no data node answers."""
_T = TypeVar("_T")


class HdfsStore:
    """The objects below a path of HDFS; see `trainer.runs.object_store.Store`.

    The user is HADOOP_USER_NAME, or who runs this process, as for Hadoop's own clients.

    Args:
        name_node: host and perhaps port of its web interface.
        path: the path, without slashes at its ends.
    """

    def __init__(self, name_node: str, path: str) -> None:
        host = name_node if re.search(r":[0-9]+$", name_node) else f"{name_node}:{_PORT}"
        self._url = f"http://{host}/webhdfs/v1"
        self._root = f"/{path}" if path else ""
        self._user = _user()

    def read(self, name: str) -> tuple[bytes, str]:
        content, number = self._open(name, lambda answer: answer.content)
        return content, str(number)

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        return str(self._put(name, content, len(content), int(version or 0)))

    def upload(self, path: Path, name: str) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            try:
                self._put(name, _Head(file, size), size, None)
            except ConflictError as error:  # an earlier request of ours has arrived late
                raise StoreError(str(error)) from error

    def download(self, name: str, path: Path) -> None:
        def write(answer: requests.Response) -> None:
            with path.open("wb") as file:
                for part in answer.iter_content(_PART_BYTES):
                    file.write(part)

        self._open(name, write)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects that begin so, also of those that are half uploaded."""
        found = set(self._walk(prefix.rpartition("/")[0]))
        return sorted(name for name in found if name.startswith(prefix))

    def folders(self) -> list[str]:
        return sorted(
            path for path, entry in self._list("").items() if entry["type"] == "DIRECTORY"
        )

    def delete(self, names: Iterable[str]) -> None:
        gone = set(names)
        for folder in {_folder(name) for name in gone}:
            entries = self._list(folder)
            files = [path for path in entries if _object(path)[0] in gone]
            for file in files:
                self._delete(file)
            if folder and len(files) == len(entries):
                with suppress(StoreError):  # another file has come
                    self._delete(folder)

    def _open(self, name: str, take: Callable[[requests.Response], _T]) -> tuple[_T, int]:
        """Return what `take` makes of an object, and the number of its version."""
        number = self._highest(name)
        for _ in range(_TRIES):
            if not number:
                raise MissingObjectError(name)
            before = number
            try:
                with _errors(name), self._call("GET", "OPEN", _file(name, number)) as answer:
                    taken = take(answer)
            except MissingObjectError:  # it was replaced meanwhile, and removed
                number = self._highest(name)
                continue
            number = self._highest(name)
            if number == before:
                return taken, number
        raise StoreError(f"{name} was replaced while it was read")

    def _put(self, name: str, data: bytes | _Head, size: int, expected: int | None) -> int:
        """Make the next version of an object, as a whole; return its number.

        Args:
            name: the object.
            data: its content.
            size: the number of bytes of that.
            expected: the number of the version to replace; None: any.

        Raises:
            ConflictError: there is another version, or already one after this one.
        """
        temporary = f"{name}.{uuid4().hex}.tmp"
        try:
            self._create(temporary, data)
            entries = self._list(_folder(name))
            stored = entries[temporary]["length"] if temporary in entries else 0
            if stored != size:
                raise StoreError(f"{name} has {stored} bytes instead of {size}")
            highest = max(_numbers(name, entries), default=0)
            number = highest + 1
            if expected not in (None, highest) or not self._rename(temporary, _file(name, number)):
                raise ConflictError(name)
        except StoreError:
            with suppress(StoreError):
                self._delete(temporary)
            raise
        numbers = _numbers(name, self._list(_folder(name)))
        if max(numbers, default=0) != number:
            raise ConflictError(name)
        with suppress(StoreError):  # they are in nobody's way
            for old in numbers:
                if old < number:
                    self._delete(_file(name, old))
        return number

    def _create(self, file: str, data: bytes | _Head) -> None:
        """Write a file, to the data node that the name node chooses."""
        answer = self._call("PUT", "CREATE", file, overwrite="false")
        with _errors(file):
            place = answer.headers["Location"]
            kind = {"Content-Type": "application/octet-stream"}
            _check(file, requests.put(place, data=data, headers=kind, timeout=_TIMEOUT_SECS))

    def _rename(self, file: str, target: str) -> bool:
        """Return whether a file has got a name, which nothing else had."""
        answer = self._call("PUT", "RENAME", file, destination=f"{self._root}/{target}")
        with _errors(file):
            is_renamed: bool = answer.json()["boolean"]
            return is_renamed

    def _delete(self, path: str) -> None:
        """Remove a file or an empty folder, which need not exist."""
        self._call("DELETE", "DELETE", path, recursive="false")

    def _walk(self, folder: str) -> Iterator[str]:
        """Yield the names of the objects in a folder and below it, of each file."""
        for path, entry in self._list(folder).items():
            if entry["type"] == "DIRECTORY":
                yield from self._walk(path)
            elif name := _object(path)[0]:
                yield name

    def _highest(self, name: str) -> int:
        """Return the number of the version of an object; 0: there is none."""
        return max(_numbers(name, self._list(_folder(name))), default=0)

    def _list(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return what is in a folder: path -> status; nothing if the folder is missing."""
        try:
            answer = self._call("GET", "LISTSTATUS", folder)
        except MissingObjectError:
            return {}
        start = f"{folder}/" if folder else ""
        with _errors(folder):
            entries = answer.json()["FileStatuses"]["FileStatus"]
            return {start + entry["pathSuffix"]: entry for entry in entries}

    def _call(self, method: str, operation: str, file: str, **parameters: str) -> requests.Response:
        """Return the answer of the name node, or of the data node that it names for reading."""
        with _errors(file):
            answer = requests.request(
                method,
                self._url + quote(f"{self._root}/{file}"),
                params={"op": operation, "user.name": self._user, **parameters},
                stream=operation == "OPEN",
                allow_redirects=operation == "OPEN",
                timeout=_TIMEOUT_SECS,
            )
            return _check(file, answer)


class _Head:
    """The first bytes of a file, which may grow meanwhile, as the body of a request."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def __len__(self) -> int:
        return self._left

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(part)
        return part


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _file(name: str, number: int) -> str:
    """Return the file of a version of an object."""
    return f"{name}.version-{number}"


def _object(file: str) -> tuple[str, int]:
    """Return the object and the number of a version's file; 0: a temporary one; "": neither."""
    match = _FILE.fullmatch(file)
    return (match[1], int(match[2] or 0)) if match else ("", 0)


def _numbers(name: str, files: Iterable[str]) -> list[int]:
    found = (_object(file) for file in files)
    return [number for other, number in found if other == name and number]


def _user() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError) as error:
        message = f"the user of HDFS is unknown ({error}); set HADOOP_USER_NAME"
        raise StoreError(message, is_temporary=False) from error


def _check(name: str, answer: requests.Response) -> requests.Response:
    """Return an answer that is no error."""
    if answer.status_code < 400:
        return answer
    try:
        remote = answer.json()["RemoteException"]
        kind, message = remote["exception"], str(remote["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = str(answer.status_code), answer.reason
    if kind == "FileNotFoundException":
        raise MissingObjectError(name)
    is_temporary = answer.status_code >= 500 or kind in _TEMPORARY
    raise StoreError(f"{name}: {kind}: {message}", is_temporary=is_temporary)


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Turn an error of the client, or an answer that is not of WebHDFS, into a StoreError."""
    try:
        yield
    except (requests.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreError(f"{name}: not an answer of WebHDFS", is_temporary=False) from error
    except requests.RequestException as error:
        # A ValueError: an address that is none, for example.
        temporary = not isinstance(error, ValueError)
        raise StoreError(f"{name}: {error}", is_temporary=temporary) from error
