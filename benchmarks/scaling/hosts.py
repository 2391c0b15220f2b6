"""Two hosts: networks of this machine that a cable connects. Needs root, ip and, for a rate, tc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from trainer.cluster.network_namespace import IsolationError, Namespace
from trainer.launch.modes.benchmark_processes import Host

_ADDRESSES = ("10.80.0.1", "10.80.0.2")
_LIMIT_SECS = 60


@contextmanager
def two_hosts(gbit: float | None) -> Iterator[list[Host]]:
    """Yield two hosts.

    Args:
        gbit: the rate of the cable in each direction, Gbit/s; None: what the kernel can do.

    Raises:
        SystemExit: the system does not allow it.
    """
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        sys.exit(f"two hosts need the program {missing[0]}")
    with ExitStack() as stack:
        try:
            networks = [stack.enter_context(Namespace()) for _ in _ADDRESSES]
        except IsolationError as error:
            sys.exit(str(error))
        there = f"/proc/{os.getpid()}/fd/{networks[1].descriptors()[-1]}"
        _run(networks[0], "ip link add eth0 type veth peer name eth1")
        _run(networks[0], f"ip link set eth1 netns {there}")
        _run(networks[1], "ip link set eth1 name eth0")
        for network, address in zip(networks, _ADDRESSES, strict=True):
            _run(network, f"ip addr add {address}/24 dev eth0")
            _run(network, "ip link set eth0 up")
            if gbit is not None:
                limit = f"rate {gbit}gbit burst {max(256, round(256 * gbit))}kb latency 50ms"
                _run(network, f"tc qdisc add dev eth0 root tbf {limit}")
        yield [Host(x, network) for x, network in zip(_ADDRESSES, networks, strict=True)]


def host_of(process: int, count: int, hosts: Sequence[Host]) -> Host:
    """Return the host of one of `count` processes."""
    return hosts[process * len(hosts) // count]


def _run(network: Namespace, command: str) -> None:
    done = subprocess.run(
        network.command(command.split()),
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stderr.strip()}")
