"""How the processes of a run find one another: by what they tell TensorFlow's own service.

That service runs in the chief, at the address that the cluster declares, and every process has
joined it before. It carries the run's token and the ports; nothing else is sent there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence

from tensorflow.python.eager import context

from trainer.engine.graph.exchange.peer_links import PeerLinks
from trainer.engine.graph.exchange.process_sum import Peers, groups_of_hosts
from trainer.engine.graph.exchange.rendezvous import Patience, Rendezvous
from trainer.errors import ConfigError

_TOKEN_BYTES = 32
_meetings = itertools.count()


class Notices:
    """What the processes of an attempt tell one another before they are connected.

    Attributes:
        secs: how long one waits for a notice.
    """

    def __init__(self, secs: float) -> None:
        self.secs = secs
        self._prefix = f"steadfast/{next(_meetings)}"

    def put(self, name: str, text: str) -> None:
        """Tell all processes something, once."""
        context.context().set_config_key_value(f"{self._prefix}/{name}", text)

    def get(self, name: str) -> str:
        """Return what a process tells, as soon as it does.

        Raises:
            tf.errors.DeadlineExceededError: nobody does.
        """
        key = f"{self._prefix}/{name}"
        text: str = context.context().get_config_key_value(key, int(1000 * self.secs))
        return text


def connect(
    addresses: Mapping[str, str], index: int, secs: float, patience: Patience, *, in_tree: bool
) -> Peers:
    """Connect the processes of a run; each of them calls this.

    Args:
        addresses: name -> `<host>:<port>` of all processes, in order, as the cluster has them.
        patience: how long a process is waited for afterward.
        in_tree: see `groups_of_hosts`.

    Raises:
        PeerLostError: a process does not come.
        ConfigError: this process cannot listen at its address.
    """
    notices = Notices(secs)
    names = list(addresses)
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses.values()]
    groups = groups_of_hosts(hosts, in_tree=in_tree)
    group = next(number for number, members in enumerate(groups) if index in members)
    rank = groups[group].index(index)
    num_parts = min(map(len, groups)) if len(groups) > 1 else len(groups[0])
    links = None
    if len(groups) > 1 and rank < num_parts:
        if index == 0:
            notices.put("token", os.urandom(_TOKEN_BYTES).hex())
        token = bytes.fromhex(notices.get("token"))
        peers = [members[rank] for members in groups]
        try:
            links = PeerLinks(group, [names[x] for x in peers], hosts[index], token, patience)
        except OSError as error:
            raise ConfigError(
                f"{names[index]} cannot listen at {hosts[index]}, by which the cluster names it "
                f"({os.strerror(error.errno or 0)}); declare an address of its host, or add "
                "strategy.communication=ring"
            ) from error
        notices.put(f"port/{index}", str(links.port))
    on_host = _on_host([names[x] for x in groups[group]], rank, notices, patience)
    if links is not None:
        before = {
            number: (hosts[peer], int(notices.get(f"port/{peer}")))
            for number, peer in enumerate(peers[:group])
        }
        links.open(before, secs)
    return Peers(on_host, links, num_parts)


def _on_host(
    names: Sequence[str], rank: int, notices: Notices, patience: Patience
) -> Rendezvous | None:
    """Connect the processes of a host."""
    if len(names) == 1:
        return None
    key = f"host/{names[0]}"
    address = os.urandom(16).hex() if rank == 0 else notices.get(key)
    rendezvous = Rendezvous(address, rank, names, patience)
    if rank == 0:
        notices.put(key, address)  # it listens by now
    rendezvous.open(notices.secs)
    return rendezvous
