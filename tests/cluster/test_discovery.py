"""The cluster that TF_CONFIG, Slurm or Kubernetes declares, and local clusters."""

import json
import socket

import pytest

from trainer.cluster import discovery
from trainer.cluster.schedulers.scheduler import Allocation
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import ConfigError

TWO = {"worker": ["a:2222", "b:2222"]}
PS = {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222", "d:2222"]}
TASK = {"type": "worker", "index": 0}


def workers(count):
    return [ProcessId("worker", index) for index in range(3 if count is None else count)]


def server_tasks(count):
    return [
        ProcessId("chief", 0),
        ProcessId("ps", 0),
        *(ProcessId("worker", index) for index in range((4 if count is None else count) - 2)),
    ]


def tf_config(jobs, task):
    return json.dumps({"cluster": jobs, "task": task})


@pytest.mark.parametrize(
    ("jobs", "task", "problem"),
    [
        (None, TASK, "an object with cluster and task"),
        ({"wroker": ["a:2"]}, TASK, r"job \(wroker\) .*did you mean 'worker'\?"),
        ({"worker": ["a:1", "b:65536"]}, TASK, r"worker-1 \(b:65536\) must be host:port"),
        (TWO, {"type": "ps", "index": 0}, r"task type \(ps\) must be one of the cluster"),
    ],
)
def test_parse_tf_config_names_what_is_wrong(jobs, task, problem):
    with pytest.raises(ConfigError, match=f"^TF_CONFIG: .*{problem}") as caught:
        discovery.parse_tf_config(tf_config(jobs, task), "TF_CONFIG")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("job", "more", "actors"),
    [
        ("actor", {"actor": ["e:1", "f:1"]}, 2),
        ("evaluator", {}, 0),
        ("evaluator", {"evaluator": ["e:1"]}, 0),
    ],
)
def test_parse_tf_config_leaves_actors_and_evaluators_out_of_the_jobs(job, more, actors):
    text = tf_config({**TWO, **more}, {"type": job, "index": 0})
    cluster = discovery.parse_tf_config(text, "TF_CONFIG")
    assert cluster == Cluster(ProcessId(job, 0), TWO, "TF_CONFIG", actors=actors)
    if job == "evaluator":
        assert list(cluster.others.values()) == TWO["worker"]


@pytest.mark.parametrize("jobs", [TWO, PS])
def test_tf_config_is_read_alike_by_tensorflow(jobs, monkeypatch):
    import tensorflow as tf
    from tensorflow.python.distribute import multi_worker_util

    for task in [
        ProcessId(job, index) for job, addresses in jobs.items() for index in range(len(addresses))
    ]:
        cluster = Cluster(task, jobs)
        monkeypatch.setenv("TF_CONFIG", cluster.tf_config())
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert resolver.cluster_spec().as_dict() == jobs
        assert (resolver.task_type, resolver.task_id) == (task.job, task.index)
        known = (resolver.cluster_spec(), resolver.task_type, resolver.task_id)
        assert multi_worker_util.is_chief(*known) == cluster.is_chief


def test_processes_of_a_scheduler_get_the_jobs_of_the_strategy():
    allocation = Allocation("Slurm", ["n1:1", "n2:1", "n3:1", "n4:1"], 3)
    cluster = discovery.allocated_cluster(server_tasks, allocation)
    assert (cluster.process_id, cluster.source) == (ProcessId("worker", 1), "Slurm")
    assert cluster.jobs == {"chief": ["n1:1"], "ps": ["n2:1"], "worker": ["n3:1", "n4:1"]}


def test_declared_cluster_rejects_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        declared = {"worker": ["a:1", f"b:{port}"]}
        text = tf_config(declared, {"type": "worker", "index": 1})
        with pytest.raises(ConfigError) as caught:
            discovery.declared_cluster(workers, {"TF_CONFIG": text})
        assert f"TF_CONFIG: port {port} of worker-1 (b:{port}) is in use" in str(caught.value)
        # The ports of other processes are not checked.
        text = tf_config(declared, {"type": "evaluator", "index": 0})
        assert discovery.declared_cluster(workers, {"TF_CONFIG": text}) is not None


def test_local_clusters_have_different_ports():
    clusters = discovery.local_clusters([*server_tasks(4), ProcessId("evaluator", 0)])
    names = [str(cluster.process_id) for cluster in clusters]
    assert names == ["chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0"]
    jobs = clusters[0].jobs
    sizes = {job: len(addresses) for job, addresses in jobs.items()}
    assert sizes == {"chief": 1, "ps": 1, "worker": 2}
    assert len({address for addresses in jobs.values() for address in addresses}) == 4
    for cluster in clusters:
        assert discovery.parse_tf_config(cluster.tf_config(), "local") == cluster
