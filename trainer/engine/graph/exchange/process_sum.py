"""Sums over processes that have no faster way than sockets: in shared memory, and between hosts.

The processes of a host write their gradients into memory that they share. Each of them adds up its
part of the columns there, exchanges that part with the process of the same number on every other
host, and all read the whole sum:

    own row <- what others add up of the gradient      (all of a host wait for all)
    sum of own columns of all rows, on this host
    sum of that over the hosts                          (`PeerLinks.all_reduce`)
    gradient <- sum, where it is                        (all of a host wait for all)

A column is added up in the order of the processes of a host and then of the hosts, or of the tree
over shards. So the sum has the same bits everywhere and in every run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.engine.graph.exchange.peer_links import PeerLinks
from trainer.engine.graph.exchange.shared_rows import AddUp, Rendezvous, SharedRows, Timeouts
from trainer.errors import ConfigError

_TOKEN_BYTES = 32
_connections = itertools.count()
_BUCKET_BYTES = 2_000_000
"""What is sent at a time: less takes as long, and more is there too late to be sent meanwhile."""


@dataclass(frozen=True)
class Peers:
    """The other processes, as this one reaches them.

    Attributes:
        on_host: those of this host, or None.
        between_hosts: one of each other host, or None if there are none, or others of this host
            exchange with them.
        num_parts: how many processes of each host exchange with other hosts, each a part.
    """

    on_host: Rendezvous | None
    between_hosts: PeerLinks | None
    num_parts: int

    @property
    def waited_secs(self) -> float:
        """How long this process has waited for the others."""
        on_host = 0.0 if self.on_host is None else self.on_host.waited_secs
        return on_host + (0.0 if self.between_hosts is None else self.between_hosts.waited_secs)


class ProcessSum:
    """Sums tensors over the processes; each has one replica, on the CPU."""

    static_shapes = False

    def __init__(self, peers: Peers, add_up: AddUp) -> None:
        self.peers = peers
        self._add_up = add_up
        self._calls = 0

    def __call__(
        self,
        replica: tf.distribute.ReplicaContext,
        gradients: list[tf.Tensor],
        others: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum float32 tensors over the processes; in replica context."""
        tensors = [*gradients, *others]
        sums: list[tf.Tensor] = [None] * len(tensors)
        # In the same order in all processes: tf.function runs operations that have a state in the
        # order in which they were traced, also those of updates that do not depend on one another.
        for bucket in self._buckets(tensors, len(gradients)):
            for i, total in zip(bucket, self._sum([tensors[i] for i in bucket]), strict=True):
                sums[i] = total
        return sums[: len(gradients)], sums[len(gradients) :]

    def _buckets(self, tensors: list[tf.Tensor], num_gradients: int) -> list[list[int]]:
        """Return which tensors are summed together, one bucket after the other.

        Between hosts those that the backward pass makes first, of the last layers, are sent while
        it makes the others. On one host it would only wait for the same processors.
        """
        if self.peers.between_hosts is None:
            return [list(range(len(tensors)))]
        buckets: list[list[int]] = [[]]
        size = 0
        for i in reversed(range(num_gradients)):
            size += 4 * (tensors[i].shape.num_elements() or 0)
            buckets[-1].append(i)
            if size >= _BUCKET_BYTES:
                buckets.append([])
                size = 0
        buckets[-1] += range(num_gradients, len(tensors))
        return [bucket for bucket in buckets if bucket]

    def _sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        self._calls += 1
        rows = SharedRows(self.peers.on_host, self._calls, self.peers.num_parts)
        links = self.peers.between_hosts
        over_hosts = None if links is None else partial(links.all_reduce, add_up=self._add_up)
        # Not as one flat buffer: the rows are that already, and to pack it would be one more copy.
        summed: list[tf.Tensor] = tf.numpy_function(
            lambda *values: rows.sum(values, self._add_up, over_hosts),
            tensors,
            [tf.float32] * len(tensors),
        )
        # In the graph too, and not for Python alone: TensorFlow rearranges products of numbers and
        # tensors of static shape, so that an update would have other bits than elsewhere.
        return [tf.ensure_shape(x, y.shape) for x, y in zip(summed, tensors, strict=True)]


def groups_of_hosts(hosts: Sequence[str], *, in_tree: bool) -> list[list[int]]:
    """Return the numbers of the processes that add up first, in memory that they share, by group.

    Args:
        in_tree: whether sums are in the order of a tree over processes. Then those of a host must
            be a subtree of it; else each process is a group by itself.
    """
    groups = [
        [number for number, other in enumerate(hosts) if other == host]
        for host in dict.fromkeys(hosts)
    ]
    if in_tree and len(groups) > 1:
        size = len(groups[0])
        is_aligned = size & (size - 1) == 0 and all(
            group == list(range(size * index, size * index + len(group)))
            and (len(group) == size or (len(group) < size and index == len(groups) - 1))
            for index, group in enumerate(groups)
        )
        if not is_aligned:
            return [[number] for number in range(len(hosts))]
    return groups


class Notifications:
    """Texts that the processes of an attempt exchange before they are connected.

    By TensorFlow's own service, which runs in the chief at the address that the cluster declares,
    and which every process has joined before.
    """

    def __init__(self, secs: float) -> None:
        self.secs = secs
        self._prefix = f"steadfast/{next(_connections)}"

    def put(self, name: str, text: str) -> None:
        """Send a text to all processes, once."""
        context.context().set_config_key_value(f"{self._prefix}/{name}", text)

    def get(self, name: str) -> str:
        """Return the text of a name, as soon as a process sends it."""
        key = f"{self._prefix}/{name}"
        text: str = context.context().get_config_key_value(key, int(1000 * self.secs))
        return text


def connect(
    addresses: Mapping[str, str], index: int, secs: float, timeouts: Timeouts, *, in_tree: bool
) -> Peers:
    """Connect the processes of a run; each of them calls this.

    Args:
        addresses: name -> `<host>:<port>` of all processes, in order, as the cluster has them.

    Raises:
        PeerLostError: a process does not come.
        ConfigError: this process cannot listen at its address.
    """
    notifications = Notifications(secs)
    names = list(addresses)
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses.values()]
    groups = groups_of_hosts(hosts, in_tree=in_tree)
    group = next(number for number, members in enumerate(groups) if index in members)
    rank = groups[group].index(index)
    num_parts = min(map(len, groups)) if len(groups) > 1 else len(groups[0])
    links = None
    if len(groups) > 1 and rank < num_parts:
        if index == 0:
            notifications.put("token", os.urandom(_TOKEN_BYTES).hex())
        token = bytes.fromhex(notifications.get("token"))
        peers = [members[rank] for members in groups]
        try:
            links = PeerLinks(group, [names[x] for x in peers], hosts[index], token, timeouts)
        except OSError as error:
            raise ConfigError(
                f"{names[index]} cannot listen at {hosts[index]}, by which the cluster names it "
                f"({os.strerror(error.errno or 0)}); declare an address of its host, or add "
                "strategy.communication=ring"
            ) from error
        notifications.put(f"port/{index}", str(links.port))
    on_host = _on_host([names[x] for x in groups[group]], rank, notifications, timeouts)
    if links is not None:
        before = {
            number: (hosts[peer], int(notifications.get(f"port/{peer}")))
            for number, peer in enumerate(peers[:group])
        }
        links.open(before, secs)
    return Peers(on_host, links, num_parts)


def _on_host(
    names: Sequence[str], rank: int, notifications: Notifications, timeouts: Timeouts
) -> Rendezvous | None:
    """Connect the processes of a host."""
    if len(names) == 1:
        return None
    key = f"host/{names[0]}"
    address = os.urandom(16).hex() if rank == 0 else notifications.get(key)
    rendezvous = Rendezvous(address, rank, names, timeouts)
    if rank == 0:
        notifications.put(key, address)  # it listens by now
    rendezvous.open(notifications.secs)
    return rendezvous
