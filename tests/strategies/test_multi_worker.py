"""Multi-worker: how GPUs are divided, and how the processes communicate."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from trainer.cluster import environment
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import ConfigError
from trainer.strategies import devices
from trainer.strategies.multi_worker import MultiWorker

JOBS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


def local(index=0):
    return Cluster(ProcessId("worker", index), JOBS)


DECLARED = Cluster(ProcessId("worker", 0), JOBS, "TF_CONFIG")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Let TensorFlow's strategy exist without any other process."""
    monkeypatch.setattr(
        tf.distribute,
        "MultiWorkerMirroredStrategy",
        lambda communication_options: SimpleNamespace(num_replicas_in_sync=2),
    )


def communication(cluster, **options):
    strategy = MultiWorker(**options)
    strategy.create(cluster)
    return strategy.communication


@pytest.mark.skipif("sys.platform != 'linux'", reason="memory is shared on Linux only")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "shared memory"),
        ({"communication": "direct"}, "shared memory"),
        ({"communication": "ring"}, "ring"),
        ({"compress": "bfloat16"}, "ring, gradients in bfloat16"),
    ],
)
def test_local_processes_report_their_communication(options, text):
    assert communication(local(), **options) == text


def test_custom_exchange_is_used_and_named(two_gpus):
    strategy = MultiWorker(communication=lambda: max)
    strategy.create(local())
    assert strategy.communication == "a custom exchange"
    assert strategy.gradient_exchange(in_tree=False) is max
    with pytest.raises(ConfigError, match=r"batch.shards needs sums in the order"):
        strategy.gradient_exchange(in_tree=True)
    with pytest.raises(ConfigError, match=r"strategy.compress \(float16\) is for TensorFlow's"):
        MultiWorker(communication=lambda: max, compress="float16").check(local())


def test_nccl_is_refused_before_a_process_starts_where_there_are_no_gpus(monkeypatch):
    monkeypatch.setattr(environment, "may_have_gpus", lambda: False)
    with pytest.raises(ConfigError, match=r"^strategy.communication \(nccl\) needs GPUs"):
        MultiWorker(communication="nccl").check_devices()
    MultiWorker(communication="ring").check_devices()


def test_declared_cluster_communicates_by_tcp_between_hosts():
    hosts = Cluster(ProcessId("worker", 1), {"worker": ["a:1", "b:1"]}, "TF_CONFIG")
    assert communication(hosts) == "TCP"
    assert communication(DECLARED) == "shared memory"  # of one host


@pytest.mark.parametrize("index", [0, 1])
def test_gpus_are_divided_between_local_workers(two_gpus, index):
    MultiWorker().create(local(index))
    assert two_gpus.visible == [two_gpus.physical[index]]


def test_declared_workers_use_all_gpus_of_their_machine(two_gpus):
    MultiWorker().create(DECLARED)
    assert two_gpus.visible == two_gpus.physical


def test_more_workers_than_gpus_are_refused_with_a_way_out(one_gpu):
    with pytest.raises(ConfigError) as raised:
        MultiWorker().create(local())
    assert raised.value.problems == (
        "strategy.workers (2) must be at most the number of GPUs (1); "
        "use fewer, or devices.gpus=0 to train on the CPU",
    )


def test_workers_without_gpus_train_on_the_cpu(one_gpu):
    devices.limit_gpus(0)
    strategy = MultiWorker()
    strategy.create(local())
    assert one_gpu.visible == []
    assert strategy.communication == "shared memory"
