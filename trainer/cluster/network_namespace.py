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

_HINTS = {
    errno.EPERM: "this system or container forbids user namespaces",
    errno.ENOSPC: "the limit user.max_user_namespaces or user.max_net_namespaces is reached",
    errno.EINVAL: "the kernel lacks them",
    errno.ENOSYS: "the kernel lacks them",
}


class IsolationError(OSError):
    """The system refuses a network namespace; the message is the reason, in one line."""


class Namespace:
    """A private network for the processes of one run.

    It exists while this object is open or a process is inside. No helper process holds it, so
    nothing is left when this process is killed.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        # File objects: the number of a closed descriptor could be that of another file by now.
        self._files = [
            open(descriptor, "rb", buffering=0)  # noqa: SIM115
            for descriptor in descriptors
        ]

    @classmethod
    def create(cls) -> Namespace:
        """Create a namespace.

        Raises:
            IsolationError: the system does not allow it.
        """
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
                lines = maker.stderr.strip().splitlines()
                raise IsolationError(
                    lines[-1]
                    if lines
                    else f"making a network namespace ended with {maker.returncode}"
                )
            _, descriptors, _, _ = socket.recv_fds(own_end, 1, 2, socket.MSG_CMSG_CLOEXEC)
        return cls(descriptors)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs another inside, under the same process id.

        Args:
            argv: the other command; a child of this process must run it.
        """
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files]
        return [*_PROGRAM, "join", *paths, "--", *argv]

    def descriptors(self) -> list[int]:
        """Return the descriptors for `enter`."""
        return [file.fileno() for file in self._files]

    def close(self) -> None:
        """Let no further process in; those inside stay."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def enter(descriptors: Sequence[int]) -> None:
    """Move this process, which must have one thread, into a namespace.

    Args:
        descriptors: those of `Namespace.descriptors`.

    Raises:
        OSError: the system refuses.
    """
    _enter(ctypes.CDLL(None, use_errno=True), descriptors)


def loopback_bytes() -> int | None:
    """Return the bytes that the loopback of this process's network has carried; None: unknown.

    In a network of its own these are the bytes that the processes of a run have sent one another.
    """
    try:
        with open("/proc/self/net/dev") as lines:
            line = next(line for line in lines if line.strip().startswith("lo:"))
    except (OSError, StopIteration):
        return None
    return int(line.partition(":")[2].split()[8])


def needs_network(experiment: Mapping[str, object]) -> str | None:
    """Return the key of a run that may need the network, with the reason, or None.

    Writers are not looked at: they say it themselves; see `environment.online_writer`.

    Args:
        experiment: the configuration as plain containers.
    """
    dataset = experiment.get("dataset")
    if isinstance(dataset, Mapping) and dataset.get("path", "") is None:
        return "dataset.path is not set, so the data may have to be downloaded"
    for key, value in _leaves(experiment):
        if isinstance(value, str) and "://" in value:
            return f"{key} ({value}) may be on the network"
        is_target = key.rpartition(".")[2] == "_target_" and value is not None
        says_itself = key.startswith("writers.")
        if is_target and not says_itself and not str(value).startswith("trainer."):
            return f"{key} ({value}) is code of your own, which may use the network"
    return None


def open_ports_warning(addresses: Sequence[str], reason: str) -> str:
    """Return the warning, one line, about a local cluster that others can reach.

    Args:
        addresses: the addresses of its processes, host:port.
        reason: why it is not isolated.
    """
    ports = ", ".join(address.rpartition(":")[2] for address in addresses)
    return (
        "anyone who can reach this machine can run operations and read files as this user, through "
        f"ports {ports}, which TensorFlow opens on every interface without authentication; not "
        f"isolated because {reason}; close the ports with a firewall, or add strategy.isolate=true "
        "to run isolated or not at all"
    )


def _leaves(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of every leaf."""
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
    """Create namespaces and send their descriptors through the socket that is standard input.

    The descriptors keep the namespaces alive.

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
        hint = (
            "root needs CAP_SYS_ADMIN"
            if error.errno == errno.EPERM and os.geteuid() == 0
            else _HINTS.get(error.errno or 0)
        )
        raise IsolationError(
            f"a network namespace is refused: {error.strerror}" + (f" ({hint})" if hint else "")
        ) from None
    with socket.socket(fileno=0) as parent:
        socket.send_fds(
            parent, [b"!"], [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
        )


def _unshare(libc: ctypes.CDLL) -> list[str]:
    """Move this process into a new network namespace.

    Where that is forbidden it moves into a new user namespace as well.

    Returns:
        The kinds of the namespaces, in the order in which to join them.
    """
    uid = os.geteuid()
    gid = os.getegid()
    try:
        _call(libc.unshare, _CLONE_NEWNET)
        return ["net"]
    except PermissionError:
        if uid == 0:
            # In a user namespace root would lose access to the files of other users.
            raise
    _call(libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNET)
    # The user and group keep their ids: files written inside have the same owner as outside.
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    return ["user", "net"]


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _join(libc: ctypes.CDLL, paths: Sequence[str], command: list[str]) -> None:
    """Enter the namespaces, the network last, and execute the command."""
    # All are opened before one is entered: from a user namespace the parent is out of reach.
    _enter(libc, [os.open(path, os.O_RDONLY) for path in paths])
    os.execvp(command[0], command)


def _enter(libc: ctypes.CDLL, descriptors: Sequence[int]) -> None:
    kinds = _KINDS[len(_KINDS) - len(descriptors) :]
    for descriptor, kind in zip(descriptors, kinds, strict=True):
        _call(libc.setns, descriptor, kind)


def _call(function: Callable[..., int], *arguments: int) -> None:
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _main(arguments: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        match arguments:
            case ["make"]:
                _make(libc)
            case ["join", *rest] if "--" in rest:
                end = rest.index("--")
                _join(libc, rest[:end], rest[end + 1 :])
            case _:
                sys.exit("usage: network_namespace.py make | join PATH... -- COMMAND")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main(sys.argv[1:])
