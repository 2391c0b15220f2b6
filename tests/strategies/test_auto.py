import numpy as np
import pytest

from tests.training import assert_same_bits, train
from trainer.cluster import Cluster, Task
from trainer.strategies.auto import Auto
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.one_device import OneDevice
from trainer.strategies.parameter_server import ParameterServer
from trainer.strategies.tpu import Tpu

pytestmark = pytest.mark.usefixtures("no_tpu")

WORKERS = {"worker": ["a:1", "b:1"]}


def never():
    raise AssertionError("nobody needs to know the number of GPUs")


@pytest.mark.parametrize("jobs", [{}, WORKERS], ids=["alone", "in a cluster"])
def test_a_tpu_comes_first(monkeypatch, jobs):
    monkeypatch.setenv("TPU_NAME", "local")
    chosen, why = Auto().resolve(Cluster(jobs=jobs), never)
    assert type(chosen) is Tpu
    assert why == "auto chose tpu: local"


def test_a_cluster_of_workers_is_used():
    chosen, why = Auto().resolve(Cluster(jobs=WORKERS, source="TF_CONFIG"), never)
    assert type(chosen) is MultiWorker
    assert why == "auto chose multi_worker: TF_CONFIG declares 2 workers"


def test_a_cluster_with_parameter_servers_is_used():
    jobs = {"chief": ["c:1"], **WORKERS, "ps": ["d:1"]}
    chosen, why = Auto().resolve(Cluster(Task("chief", 0), jobs, "TF_CONFIG"), never)
    assert type(chosen) is ParameterServer
    assert why == "auto chose parameter_server: TF_CONFIG declares parameter servers"


@pytest.mark.parametrize(
    ("gpus", "kind", "why"),
    [
        (0, OneDevice, "auto chose one_device: no GPU"),
        (1, OneDevice, "auto chose one_device: one GPU"),
        (4, Mirrored, "auto chose mirrored: 4 GPUs"),
    ],
)
def test_the_number_of_gpus_decides(gpus, kind, why):
    chosen, said = Auto().resolve(Cluster(), lambda: gpus)
    assert type(chosen) is kind
    assert said == why


def test_until_gpus_are_counted_it_is_some_strategy_of_one_process():
    undecided, why = Auto(workers=2).resolve(Cluster())
    assert why is None
    assert undecided.tasks(None) == []
    assert undecided.num_replicas() is None
    assert not undecided.servers
    undecided.check(Cluster())


def test_tasks_that_a_scheduler_started_are_workers():
    assert Auto().tasks(2) == [Task("worker", 0), Task("worker", 1)]
    assert Auto().tasks(None) == []
    assert Auto(workers=2).tasks(None) == Auto().tasks(2)


def test_others_mean_themselves():
    one = OneDevice()
    assert one.resolve(Cluster(), never) == (one, None)


def test_it_trains_as_what_it_chose(tmp_path):
    one, auto = train(tmp_path / "one"), train(tmp_path / "auto", "strategy=auto")
    assert_same_bits(one, auto)
    assert all(np.isfinite(value).all() for value in auto.values())
