"""A network of its own for the processes of a local cluster, out of reach for everyone else. No TensorFlow.

TensorFlow's servers listen on every interface and obey whoever connects. In a network namespace of Linux that has a loopback
and nothing more, they find each other at 127.0.0.1 and nobody outside finds them. It keeps others out; it does not hold back
the processes within.

This file is also a program, which `Namespace` starts: `make` makes namespaces, `join` runs a command in them. As that it has
no project on its path and must start fast: hence what is imported here, and where.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

_CLONE_NEWUSER, _CLONE_NEWNET = _KINDS = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

# -I and -S: neither the environment nor this very folder, whose names are not the standard library's, may change what is imported.
_PROGRAM = (sys.executable, "-I", "-S", os.path.abspath(__file__))

_HINTS = {
    errno.EPERM: "this system or container forbids user namespaces",
    errno.ENOSPC: "the limit user.max_user_namespaces or user.max_net_namespaces is reached",
    errno.EINVAL: "the kernel lacks them",
    errno.ENOSYS: "the kernel lacks them",
}


class IsolationError(OSError):
    """The system does not give a network of its own; the message is the reason, in one line."""


class Namespace:
    """A network of its own for the processes of one run.

    It exists as long as this object is open or a process is within; no process is needed to hold it, and none is left when
    this one is killed.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        # Files, not numbers: one that is closed has no number, which by then could be another file's.
        self._files = [open(descriptor, "rb", buffering=0) for descriptor in descriptors]  # noqa: SIM115

    @classmethod
    def create(cls) -> Namespace:
        """Makes one.

        Raises:
            IsolationError: the system does not allow it.
        """
        import socket
        import subprocess

        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # A process of one thread: only that may make a user namespace.
                maker = subprocess.run([*_PROGRAM, "make"], stdin=theirs.fileno(), capture_output=True, text=True, check=False)
            if maker.returncode != 0:
                said = maker.stderr.strip().splitlines()
                raise IsolationError(said[-1] if said else f"making a network namespace ended with {maker.returncode}")
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 2, socket.MSG_CMSG_CLOEXEC)
        return cls(descriptors)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Makes of a command one that runs it within, under the same process id; for a child of this process."""
        paths = [f"/proc/{os.getpid()}/fd/{opened.fileno()}" for opened in self._files]
        return [*_PROGRAM, "join", *paths, "--", *argv]

    def close(self) -> None:
        """Lets nobody else in; those within stay."""
        for opened in self._files:
            opened.close()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def needs_network(experiment: Mapping[str, object]) -> str | None:
    """Says what in a run may need the network, or None if nothing does.

    Args:
        experiment: the configuration as plain containers.
    """
    dataset = experiment.get("dataset")
    if isinstance(dataset, Mapping) and dataset.get("path", "") is None:
        return "dataset.path is not set, so the data may have to be downloaded"
    for key, value in _leaves(experiment):
        if isinstance(value, str) and "://" in value:
            return f"{key} ({value}) may be on the network"
        if key.rpartition(".")[2] == "_target_" and not str(value).startswith("trainer."):
            return f"{key} ({value}) is code of your own, which may use the network"
    return None


def open_ports_warning(addresses: Sequence[str], reason: str) -> str:
    """Words the warning of a local cluster that others can reach, as one line.

    Args:
        addresses: of its processes, host:port.
        reason: why it is not isolated.
    """
    ports = ", ".join(address.rpartition(":")[2] for address in addresses)
    return (
        f"anyone who can reach this machine can run operations and read files as this user, through ports {ports}, which TensorFlow "
        f"opens on every interface without authentication; not isolated because {reason}; "
        "close the ports with a firewall, or add strategy.isolate=true to run isolated or not at all"
    )


def _leaves(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Gives the dotted key and the value of everything that is no container."""
    if isinstance(node, Mapping):
        items = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, list | tuple):
        items = [(str(index), value) for index, value in enumerate(node)]
    else:
        yield path, node
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else key)


def _make(libc: ctypes.CDLL) -> None:
    """Makes namespaces, and sends descriptors of them, which keep them alive, through the socket that is standard input.

    Raises:
        IsolationError: the system refuses.
    """
    import socket

    try:
        kinds = _unshare(libc)
        _bring_loopback_up()
    except AttributeError:
        raise IsolationError(f"this system ({sys.platform}) has no network namespaces") from None
    except OSError as error:
        hint = "root needs CAP_SYS_ADMIN" if error.errno == errno.EPERM and os.geteuid() == 0 else _HINTS.get(error.errno or 0)
        raise IsolationError(f"a network namespace is refused: {error.strerror}" + (f" ({hint})" if hint else "")) from None
    with socket.socket(fileno=0) as parent:
        socket.send_fds(parent, [b"!"], [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds])


def _unshare(libc: ctypes.CDLL) -> list[str]:
    """Puts this process into a new network namespace, and where only that is allowed, into a new user namespace as well.

    Returns:
        The kinds of the namespaces, in the order in which to join them.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call(libc.unshare, _CLONE_NEWNET)
        return ["net"]
    except PermissionError:
        if uid == 0:
            raise  # in a user namespace root would lose its power over the files of others, which the run may need
    _call(libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNET)
    # Everyone stays who they are: a file that is written within has the owner that it would have outside.
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as opened:
            opened.write(content)
    return ["user", "net"]


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket() as anyone:
        fcntl.ioctl(anyone, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _join(libc: ctypes.CDLL, paths: Sequence[str], command: list[str]) -> None:
    """Enters the namespaces, the network last, and becomes the command."""
    # All are opened before one is entered: out of a user namespace there is no looking into the parent.
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    for descriptor, kind in zip(descriptors, _KINDS[-len(paths) :], strict=True):
        _call(libc.setns, descriptor, kind)
    os.execvp(command[0], command)


def _call(function: Callable[..., int], *arguments: int) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _main(arguments: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if arguments == ["make"]:
            _make(libc)
        else:
            end = arguments.index("--")
            _join(libc, arguments[1:end], arguments[end + 1 :])
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main(sys.argv[1:])
