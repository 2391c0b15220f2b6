"""Network namespaces: a private network for the processes of a local cluster.

TensorFlow's servers listen on every interface and obey every client. In a network namespace of
Linux with nothing but a loopback they reach each other at 127.0.0.1, and no other process reaches
them. It keeps others out; it does not restrict the processes inside.

This file is also a program, which `Namespace` runs by its path: `make` creates namespaces, `join`
runs a command in them. It runs without this package on its path and must start fast, so it
imports the standard library alone, and some of that late.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

_CLONE_NEWUSER, _CLONE_NEWNET = _KINDS = 0x10000000, 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

# -I and -S: neither the environment nor this folder may change what is imported.
_PROGRAM = (sys.executable, "-I", "-S", os.path.abspath(__file__))


class IsolationError(OSError):
    """The system refuses a network namespace; the message is the reason, in one line."""


class Namespace:
    """A private network for the processes of one run.

    It exists while this object is open or a process is inside. No helper process holds it, so
    nothing is left when this process is killed.

    Raises:
        IsolationError: the system does not allow it.
    """

    def __init__(self) -> None:
        import socket
        import subprocess

        own_end, maker_end = socket.socketpair()
        with own_end:
            with maker_end:
                # Only a process of one thread may create a user namespace.
                maker = subprocess.run(
                    [*_PROGRAM, "make"],
                    stdin=maker_end.fileno(),
                    capture_output=True,
                    text=True,
                    check=False,
                )
            if maker.returncode != 0:
                ended = f"making a network namespace ended with {maker.returncode}"
                raise IsolationError((maker.stderr.strip().splitlines() or [ended])[-1])
            _, descriptors, _, _ = socket.recv_fds(own_end, 1, 2, socket.MSG_CMSG_CLOEXEC)
        # File objects: the number of a closed descriptor could be that of another file by now.
        self._files = [open(file, "rb", buffering=0) for file in descriptors]  # noqa: SIM115

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command for a child, which runs another inside under the same process id."""
        paths = [f"/proc/{os.getpid()}/fd/{file}" for file in self.descriptors()]
        return [*_PROGRAM, "join", *paths, "--", *argv]

    def descriptors(self) -> list[int]:
        """Return the descriptors for `enter`."""
        return [file.fileno() for file in self._files]

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exception: object) -> None:
        """Let no further process in; those inside stay."""
        for file in self._files:
            file.close()


def enter(descriptors: Sequence[int]) -> None:
    """Move this process, which must have one thread, into a namespace."""
    kinds = _KINDS[len(_KINDS) - len(descriptors) :]
    for descriptor, kind in zip(descriptors, kinds, strict=True):
        _call("setns", descriptor, kind)


def needs_network(experiment: Mapping[str, object]) -> str | None:
    """Return the key of a run that may need the network, with the reason, or None.

    Writers are not checked: they declare it themselves; see `environment.online_writer`.
    """
    dataset = experiment.get("dataset")
    if isinstance(dataset, Mapping) and dataset.get("path", "") is None:
        return "dataset.path is not set, so the data may have to be downloaded"
    for key, value in _leaves(experiment, ""):
        if value == "imagenet" and key.endswith(".weights"):
            return f"{key} ({value}) may have to be downloaded"
        if isinstance(value, str) and "://" in value:
            return f"{key} ({value}) may be on the network"
        is_target = key.rpartition(".")[2] == "_target_" and value is not None
        if is_target and not key.startswith("writers.") and not str(value).startswith("trainer."):
            return f"{key} ({value}) is your code, which may use the network"
    return None


def open_ports_warning(jobs: Mapping[str, Sequence[str]], reason: str) -> str:
    """Return the warning, one line, about a local cluster that others can reach."""
    addresses = (address for addresses in jobs.values() for address in addresses)
    ports = ", ".join(address.rpartition(":")[2] for address in addresses)
    return (
        "warning: anyone who can reach this machine can run operations and read files as this "
        f"user, through ports {ports}, which TensorFlow opens on every interface without "
        f"authentication; not isolated because {reason}; close the ports with a firewall, or add "
        "strategy.isolate=true to run isolated or not at all"
    )


def _leaves(node: object, path: str) -> Iterator[tuple[str, object]]:
    items = list(node.items()) if isinstance(node, Mapping) else []
    if isinstance(node, list | tuple):
        items = list(enumerate(node))
    elif not isinstance(node, Mapping):
        yield path, node
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))


def _make() -> None:
    """Create namespaces and send their descriptors through the socket that is standard input.

    The descriptors keep the namespaces alive. They are sent in the order in which to join them.
    """
    import fcntl
    import socket
    import struct

    try:
        kinds = _unshare()
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    except AttributeError:
        raise IsolationError(f"this system ({sys.platform}) has no network namespaces") from None
    except OSError as error:
        hint = ""
        if error.errno == errno.EPERM:
            hint = " (this system or container forbids user namespaces)"
            if os.geteuid() == 0:
                hint = " (root needs CAP_SYS_ADMIN)"
        raise IsolationError(f"a network namespace is refused: {error.strerror}{hint}") from None
    with socket.socket(fileno=0) as parent:
        files = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
        socket.send_fds(parent, [b"!"], files)


def _unshare() -> list[str]:
    """Move this process into a new network namespace, where need be in a new user namespace too."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNET)
        return ["net"]
    except PermissionError:
        if uid == 0:
            # In a user namespace root would lose access to the files of other users.
            raise
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
    # The user and group keep their ids: files written inside have the same owner as outside.
    contents = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, content in contents.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    return ["user", "net"]


def _join(paths: Sequence[str], command: list[str]) -> None:
    # All are opened before one is entered: from a user namespace the parent is out of reach.
    enter([os.open(path, os.O_RDONLY) for path in paths])
    os.execvp(command[0], command)


def _call(name: str, *arguments: int) -> None:
    function: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["make"]:
            _make()
        else:
            end = sys.argv.index("--")
            _join(sys.argv[2:end], sys.argv[end + 1 :])
    except OSError as error:
        sys.exit(str(error))
