import pytest

from trainer.cluster.spec import Cluster, ProcessId
from trainer.strategies.auto import Auto
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.one_device import OneDevice
from trainer.strategies.parameter_server import ParameterServer
from trainer.strategies.tpu import Tpu

pytestmark = pytest.mark.usefixtures("no_tpu")

WORKERS = {"worker": ["a:1", "b:1"]}


def never():
    raise AssertionError("the number of GPUs is not needed")


@pytest.mark.parametrize("jobs", [{}, WORKERS], ids=["alone", "in a cluster"])
def test_auto_prefers_a_tpu(monkeypatch, jobs):
    monkeypatch.setenv("TPU_NAME", "local")
    chosen, reason = Auto().resolve(Cluster(jobs=jobs), never)
    assert type(chosen) is Tpu
    assert reason == "auto chose tpu: local"


def test_auto_uses_a_declared_cluster_of_workers():
    chosen, reason = Auto().resolve(Cluster(jobs=WORKERS, source="TF_CONFIG"), never)
    assert type(chosen) is MultiWorker
    assert reason == "auto chose multi_worker: TF_CONFIG declares 2 workers"


def test_auto_uses_declared_parameter_servers():
    jobs = {"chief": ["c:1"], **WORKERS, "ps": ["d:1"]}
    chosen, reason = Auto().resolve(Cluster(ProcessId("chief", 0), jobs, "TF_CONFIG"), never)
    assert type(chosen) is ParameterServer
    assert reason == "auto chose parameter_server: TF_CONFIG declares parameter servers"


@pytest.mark.parametrize(
    ("gpus", "kind", "reason"),
    [
        (0, OneDevice, "auto chose one_device: no GPU"),
        (1, OneDevice, "auto chose one_device: one GPU"),
        (4, Mirrored, "auto chose mirrored: 4 GPUs"),
    ],
)
def test_auto_chooses_by_the_number_of_gpus(gpus, kind, reason):
    chosen, line = Auto().resolve(Cluster(), lambda: gpus)
    assert type(chosen) is kind
    assert line == reason


def test_auto_is_one_process_until_gpus_are_counted():
    undecided, reason = Auto(workers=2).resolve(Cluster())
    assert reason is None
    assert undecided.process_ids(None) == []
    assert undecided.num_replicas() is None
    assert not undecided.service_jobs
    undecided.check(Cluster())
