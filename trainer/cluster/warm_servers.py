"""Fork servers that a command leaves to later ones (`launch.keep_warm_secs`): where they listen.

They are in a folder of the user's own: `<runtime folder>/<hash of everything that must be equal>/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import trainer
from trainer.cluster import environment, fork_protocol
from trainer.cluster.fork_protocol import Describe, Description, Stop


def directory() -> Path | None:
    """Return the folder where a server for this process would listen; None: there is no server."""
    root = Path(environment.runtime_directory())
    if not root.is_dir() or not any(root.iterdir()):
        return None
    return root / code_digest()


def listen(variables: Mapping[str, str]) -> tuple[socket.socket, Path]:
    """Return a socket for a server that is left to later commands, and its path.

    Other servers are asked to end: there is at most one.

    Args:
        variables: the environment that the server was started with.

    Raises:
        OSError: the folder cannot be made, or others have access to it.
    """
    root = Path(environment.runtime_directory())
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise PermissionError(f"{root} is not a folder of this user alone")
    stop()
    path = root / code_digest() / environment.import_digest(variables)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return fork_protocol.listen(path), path


def describe() -> list[Description]:
    """Return what each server says of itself."""
    return [answer for _, answer in _ask(Describe()) if isinstance(answer, Description)]


def stop() -> list[Description]:
    """Ask every server to end when its last worker has, and return what they were."""
    servers = describe()
    for path, _ in _ask(Stop()):
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()
    return servers


def code_digest() -> str:
    """Return a hash of everything but the environment that two processes must have in common.

    That is the user and what the system allows this process, the installed packages, and the
    sources of this one. Packages are compared by their lists of files, which have a hash of each.
    """
    from importlib import metadata  # slow, and needed only if there is a server

    digest = hashlib.sha256()
    limits = [
        resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    ]
    ids = (os.getuid(), os.getgid(), sorted(os.getgroups()), os.nice(0))
    digest.update(json.dumps([limits, ids]).encode())
    with suppress(OSError):
        digest.update(Path("/proc/self/cgroup").read_bytes())
        digest.update(_umask())
    packages = metadata.distributions()
    for content in sorted(package.read_text("RECORD") or package.name for package in packages):
        digest.update(content.encode())
    for file in _sources():
        digest.update(str(file).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _ask(message: Describe | Stop) -> Iterator[tuple[Path, fork_protocol.Message | None]]:
    """Yield the socket of every server and its answer; None: it is gone, or gives none."""
    for path in sorted(Path(environment.runtime_directory()).glob("*/*")):
        answer = None
        if connection := fork_protocol.connect(path):
            with connection, suppress(OSError):
                fork_protocol.send(connection, message)
                answer, _ = fork_protocol.receive(connection)
        yield path, answer


def _umask() -> bytes:
    lines = Path("/proc/self/status").read_bytes().splitlines()
    return next(line for line in lines if line.startswith(b"Umask:"))


def _sources() -> list[Path]:
    """Return the Python files of this package, models and datasets included."""
    package = Path(trainer.__file__).parent
    folders = (package, package.parent / "models", package.parent / "datasets")
    return sorted(file for folder in folders for file in folder.rglob("*.py"))
