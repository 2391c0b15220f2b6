"""Two hosts for tests: network namespaces of this machine that a cable connects.

Each has a host name. They share its files and its process ids.
"""

import json
import os
import sys
from contextlib import contextmanager

from tests.support.namespaces import namespaces
from tests.support.processes import ROOT

_NETWORK = """
mount -t tmpfs none /run
mkdir /run/netns
ip netns add host-0
ip netns add host-1
ip link add eth0 netns host-0 type veth peer name eth0 netns host-1
for index in 0 1; do
  ip -n host-$index addr add 10.78.0.$((10 + index))/24 dev eth0
  ip -n host-$index link set eth0 up
  ip -n host-$index link set lo up
done
"""

_COMMAND = 'hostname "$1" && cd "$2" && shift 2 && exec "$@"'


class Hosts:
    """The hosts host-0 and host-1, whose addresses are 10.78.0.10 and 10.78.0.11."""

    def __init__(self, network):
        self._network = network

    def start(self, host, directory, *overrides, **environment):
        """Start `train.py` on a host; the process is the command itself."""
        command = [sys.executable, str(ROOT / "train.py"), *overrides]
        return self.start_program(host, directory, *command, **environment)

    def start_cluster(self, directory, addresses, *overrides):
        """Start the command of each worker of a cluster, on the host that has its address."""
        cluster = {"worker": list(addresses)}
        return [
            self.start(
                int(address.partition(":")[0][-1]),
                directory,
                *overrides,
                TF_CONFIG=json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            )
            for index, address in enumerate(addresses)
        ]

    def start_program(self, host, directory, *command, **environment):
        """Start a program on a host; the process is the program itself."""
        inherited = dict(os.environ)
        # A fork server is on the network on which it was started.
        inherited.pop("STEADFAST_FORK_SERVER", None)
        return self._network.start(
            *("nsenter", f"--net=/run/netns/host-{host}"),
            # nsenter leaves the directory
            *("unshare", "--uts", "sh", "-c", _COMMAND, "sh", f"host-{host}", str(directory)),
            *command,
            environment=inherited | environment,
        )


@contextmanager
def two_hosts():
    """Yield two hosts; skip the test where the system forbids namespaces."""
    with namespaces(_NETWORK) as network:
        yield Hosts(network)
