"""Processes that find one another by notices, and sum within hosts and between them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainer.engine.graph.exchange import meeting
from trainer.engine.graph.exchange.rendezvous import Patience
from trainer.engine.graph.exchange.shared_rows import SharedRows
from trainer.engine.graph.step.shard_tree import chain_sum, tree_sum
from trainer.errors import ConfigError


class Notices:
    """Notices that all threads see, as TensorFlow's service shows them to all processes."""

    texts: dict[str, str] = {}  # noqa: RUF012 - new for each test
    changed = threading.Condition()

    def __init__(self, secs):
        self.secs = secs

    def put(self, name, text):
        with self.changed:
            assert name not in self.texts
            self.texts[name] = text
            self.changed.notify_all()

    def get(self, name):
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.texts, self.secs)
            return self.texts[name]


@pytest.fixture(autouse=True)
def notices(monkeypatch):
    monkeypatch.setattr(Notices, "texts", {})
    monkeypatch.setattr(meeting, "Notices", Notices)


@pytest.mark.parametrize("add_up", [chain_sum, tree_sum])
@pytest.mark.parametrize("hosts", ["1122", "1123", "1212", "111", "12"])
def test_all_get_the_sum_wherever_they_are(hosts, add_up):
    addresses = {f"worker-{i}": f"127.0.0.{host}:{i}" for i, host in enumerate(hosts)}
    draw = np.random.default_rng(0)
    mine = [[draw.integers(-9, 9, [7, 50]).astype(np.float32)] for _ in hosts]

    def work(index):
        in_tree = add_up is tree_sum
        peers = meeting.connect(addresses, index, 10.0, Patience(), in_tree=in_tree)
        rows = SharedRows(peers.on_host, 1, peers.num_parts)
        links = peers.between_hosts
        over_hosts = links and (lambda total, own: links.all_reduce(total, own, add_up))
        return rows.sum(mine[index], add_up, over_hosts)[0]

    with ThreadPoolExecutor(len(hosts)) as pool:
        for total in pool.map(work, range(len(hosts))):
            np.testing.assert_array_equal(total, sum(x for (x,) in mine))


def test_address_of_no_host_is_refused_with_what_to_do():
    addresses = {"worker-0": "203.0.113.7:1", "worker-1": "203.0.113.8:1"}
    with pytest.raises(
        ConfigError,
        match=r"^worker-0 cannot listen at 203.0.113.7, by which the cluster names it \(Cannot "
        r"assign requested address\); declare .* or add strategy.communication=ring$",
    ):
        meeting.connect(addresses, 0, 1.0, Patience(), in_tree=False)
