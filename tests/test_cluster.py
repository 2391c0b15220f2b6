import json
import shlex
import socket

import pytest

from trainer import cluster
from trainer.cluster import Cluster, Task
from trainer.errors import ConfigError

TWO = {"worker": ["a:2222", "b:2222"]}
PS = {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222", "d:2222"]}
EXAMPLE = '{"worker": ["a:2222", "b:2222"]}'
TASK = {"type": "worker", "index": 0}


def workers(count):
    return [Task("worker", index) for index in range(3 if count is None else count)]


def servers(count):
    return [Task("chief", 0), Task("ps", 0), *(Task("worker", index) for index in range((4 if count is None else count) - 2))]


def text(jobs, task, **others):
    return json.dumps({"cluster": jobs, "task": task, **others})


@pytest.fixture
def environment(monkeypatch):
    """Gives a way to set variables; all that could declare a cluster are unset."""
    for name in ("TF_CONFIG", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_DISTRIBUTION", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


@pytest.fixture
def no_ports(monkeypatch):
    """Leaves out whether the port is free: other programs may run here."""
    monkeypatch.setattr(cluster, "_check_port", lambda found: None)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("worker", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('["a:2222"]', '["a:2222"] must be an object with "cluster" and "task"'),
        (json.dumps({"task": TASK}), f'"cluster" (missing) must map jobs to their addresses, such as {EXAMPLE}'),
        (text({}, TASK), f'"cluster" ({{}}) must map jobs to their addresses, such as {EXAMPLE}'),
        (text(["a:2222"], TASK), f'"cluster" (["a:2222"]) must map jobs to their addresses, such as {EXAMPLE}'),
        (text({"wroker": ["a:2222"]}, TASK), "job (wroker) must be one of chief, worker, ps, evaluator; did you mean 'worker'?"),
        (text({"gpu": ["a:2222"]}, TASK), "job (gpu) must be one of chief, worker, ps, evaluator"),
        (text({"master": ["a:2222"], **TWO}, TASK), "job (master) is TensorFlow 1's name; write chief"),
        (text({"worker": "a:2222"}, TASK), 'job worker ("a:2222") must be a list of addresses, such as ["a:2222"]'),
        (text({"worker": ["a"]}, TASK), "address of worker-0 (a) must be host:port, such as a:2222"),
        (text({"worker": [2222]}, TASK), "address of worker-0 (2222) must be host:port, such as a:2222"),
        (text({"worker": ["a:http"]}, TASK), "address of worker-0 (a:http) must be host:port, such as a:2222"),
        (text({"worker": ["fe80::1:2222"]}, TASK), "address of worker-0 (fe80::1:2222) must be host:port, such as a:2222"),
        (text({"worker": ["grpc://a:2222"]}, TASK), "address of worker-0 (grpc://a:2222) must be host:port, without grpc://"),
        (text({"worker": ["a:1", "b:65536"]}, TASK), "port of worker-1 (b:65536) must be from 1 to 65535"),
        (text({"worker": ["a:0"]}, TASK), "port of worker-0 (a:0) must be from 1 to 65535"),
        (text({"worker": ["a:1", "a:1"]}, TASK), "worker-1 has the same address as worker-0 (a:1); each needs its own"),
        (text({"chief": ["a:1"], "worker": ["a:1"]}, TASK), "worker-0 has the same address as chief-0 (a:1); each needs its own"),
        (text({"chief": ["a:1", "b:1"]}, TASK), "the cluster has 2 chiefs; there can be only one"),
        (text({**TWO, "evaluator": ["e:1", "f:1"]}, TASK), "the cluster has 2 evaluators; there can be only one"),
        (text({"ps": ["a:1"]}, TASK), "the cluster has no worker, only ps; add the job worker"),
        (text({"chief": ["a:1"], "ps": ["b:1"]}, TASK), "the cluster has no worker, only chief and ps; add the job worker"),
        (text({"evaluator": ["a:1"]}, TASK), "the cluster has no worker, only evaluator; add the job worker"),
        (text({"worker": []}, TASK), "the cluster has no worker, only empty jobs; add the job worker"),
        (json.dumps({"cluster": TWO}), '"task" (missing) must say which process this is, such as {"type": "worker", "index": 0}'),
        (text(TWO, "worker"), '"task" ("worker") must say which process this is, such as {"type": "worker", "index": 0}'),
        (text(TWO, {"index": 0}), "task type (missing) must be one of chief, worker, ps, evaluator"),
        (text(TWO, {"type": None, "index": 0}), "task type (None) must be one of chief, worker, ps, evaluator"),
        (
            text(TWO, {"type": "cheif", "index": 0}),
            "task type (cheif) must be one of chief, worker, ps, evaluator; did you mean 'chief'?",
        ),
        (text(TWO, {"type": "master", "index": 0}), "task type (master) is TensorFlow 1's name; write chief"),
        (text(PS | {"ps": []}, {"type": "ps", "index": 0}), "task type (ps) is not in the cluster, which has chief, worker"),
        (text(TWO, {"type": "chief", "index": 0}), "task type (chief) is not in the cluster, which has worker"),
        (text(TWO, {"type": "worker"}), "task index (missing) must be an integer, such as 0"),
        (text(TWO, {"type": "worker", "index": "1"}), 'task index ("1") must be an integer, such as 0'),
        (text(TWO, {"type": "worker", "index": True}), "task index (true) must be an integer, such as 0"),
        (text(TWO, {"type": "worker", "index": 1.0}), "task index (1.0) must be an integer, such as 0"),
        (text(TWO, {"type": "worker", "index": -1}), "task index (-1) is out of range: the cluster has 2 workers, 0 to 1"),
        (text(TWO, {"type": "worker", "index": 2}), "task index (2) is out of range: the cluster has 2 workers, 0 to 1"),
        (text(PS, {"type": "chief", "index": 1}), "task index (1) is out of range: the cluster has 1 chief, number 0"),
        (text(PS | {"ps": ["e:1", "f:1"]}, {"type": "ps", "index": 2}), "task index (2) is out of range: the cluster has 2 ps, 0 to 1"),
        (text(TWO, {"type": "evaluator", "index": 1}), "task index (1) is out of range: the cluster has 1 evaluator, number 0"),
        (text(TWO, TASK, taks=TASK), "unknown key 'taks'; did you mean 'task'?"),
        (text(TWO, TASK, model="cnn"), "unknown key 'model'; it has cluster and task"),
    ],
)
def test_a_wrong_tf_config(declared, expected):
    with pytest.raises(ConfigError) as caught:
        cluster.parse(declared, "TF_CONFIG")
    assert caught.value.problems == (f"TF_CONFIG: {expected}",)


def test_problems_are_told_together():
    with pytest.raises(ConfigError) as caught:
        cluster.parse(text({"worker": ["a", "grpc://b:1"]}, None, moodel=1), "hosts.json")
    assert caught.value.problems == (
        "hosts.json: unknown key 'moodel'; it has cluster and task",
        "hosts.json: address of worker-0 (a) must be host:port, such as a:2222",
        "hosts.json: address of worker-1 (grpc://b:1) must be host:port, without grpc://",
    )


def test_a_right_tf_config():
    others = {"environment": "cloud", "rpc_layer": "grpc", "session_master": "", "job": {"region": "x"}}
    jobs = {"chief": ["host-1.example.org:1"], "worker": ["[::1]:65535", "10.0.0.1:2222"], "ps": []}
    found = cluster.parse(text(jobs, {"type": "worker", "index": 1, "trial": "3"}, **others), "TF_CONFIG")
    assert found == Cluster(Task("worker", 1), {job: jobs[job] for job in ("chief", "worker")}, "TF_CONFIG")
    assert cluster.parse(found.tf_config(), "TF_CONFIG") == found
    assert cluster.restore(json.loads(json.dumps(found.plain()))) == found


@pytest.mark.parametrize("jobs", [TWO, {**TWO, "evaluator": ["e:2222"]}])
def test_an_evaluator_is_no_part_of_the_cluster(jobs):
    found = cluster.parse(text(jobs, {"type": "evaluator", "index": 0}), "TF_CONFIG")
    assert found == Cluster(Task("evaluator", 0), TWO, "TF_CONFIG")
    assert list(found.others.values()) == TWO["worker"]


@pytest.mark.parametrize(
    ("jobs", "chiefs"),
    [
        #             chief-0 worker-0 worker-1 ps-0 evaluator-0
        ({}, (True, True, False, False, False)),
        (TWO, (True, True, False, False, False)),
        (PS, (True, False, False, False, False)),
    ],
)
def test_who_is_chief(jobs, chiefs):
    tasks = [Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0), Task("evaluator", 0)]
    assert tuple(Cluster(task, jobs).is_chief for task in tasks) == chiefs
    members = [Task(job, index) for job, addresses in jobs.items() for index in range(len(addresses))] or [Cluster().task]
    assert [Cluster(task, jobs).is_chief for task in members].count(True) == 1


@pytest.mark.parametrize("jobs", [TWO, PS])
def test_tensorflow_reads_the_same(jobs, monkeypatch):
    import tensorflow as tf
    from tensorflow.python.distribute import multi_worker_util

    for task in [Task(job, index) for job, addresses in jobs.items() for index in range(len(addresses))]:
        seen = Cluster(task, jobs)
        monkeypatch.setenv("TF_CONFIG", seen.tf_config())
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert resolver.cluster_spec().as_dict() == jobs
        assert (resolver.task_type, resolver.task_id) == (task.job, task.index)
        assert multi_worker_util.is_chief(resolver.cluster_spec(), resolver.task_type, resolver.task_id) == seen.is_chief


def test_nothing_is_declared(environment):
    environment("TF_CONFIG", "")
    assert cluster.declared(workers) is None


@pytest.mark.usefixtures("no_ports")
def test_who_declares_first(environment, monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-2.peers")
    environment("JOB_COMPLETION_INDEX", "2")
    assert cluster.declared(workers) == Cluster(Task("worker", 2), {"worker": [f"train-{n}.peers:2222" for n in range(3)]}, "Kubernetes")
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NODELIST": "n[1-4]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    }.items():
        environment(name, value)
    found = cluster.declared(servers)
    assert (found.task, found.source) == (Task("worker", 1), "Slurm")
    hosts = {job: [address.partition(":")[0] for address in addresses] for job, addresses in found.jobs.items()}
    assert hosts == {"chief": ["n1"], "ps": ["n2"], "worker": ["n3", "n4"]}
    environment("TF_CONFIG", text(TWO, {"type": "worker", "index": 1}))
    assert cluster.declared(servers) == Cluster(Task("worker", 1), TWO, "TF_CONFIG")


@pytest.mark.usefixtures("no_ports")
def test_a_scheduler_may_start_an_evaluator(environment, monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-1")
    environment("JOB_COMPLETION_INDEX", "1")
    found = cluster.declared(lambda count: [Task("worker", 0), Task("evaluator", 0)])
    assert found == Cluster(Task("evaluator", 0), {"worker": ["train-0:2222"]}, "Kubernetes")


def test_a_wrong_declaration_is_told_with_its_source(environment):
    environment("TF_CONFIG", "{}")
    with pytest.raises(ConfigError, match=r'^TF_CONFIG: "cluster" \(missing\)'):
        cluster.declared(workers)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")]
)
def test_a_port_at_which_somebody_listens(environment, family, host):
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        port = listener.getsockname()[1]
        environment("TF_CONFIG", text({"worker": ["a:1", f"b:{port}"]}, {"type": "worker", "index": 1}))
        with pytest.raises(ConfigError) as caught:
            cluster.declared(workers)
        assert caught.value.problems == (
            f"TF_CONFIG: port {port} of worker-1 (b:{port}) is in use on this machine; "
            "the declaration is stale, or an earlier task is still alive",
        )
        # Only its own port is this task's business.
        environment("TF_CONFIG", text({"worker": [f"b:{port}"]}, {"type": "evaluator", "index": 0}))
        assert cluster.declared(workers) is not None


def test_a_connection_that_has_ended_is_no_obstacle(environment):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            # Who closes first is the one whose port waits.
            listener.accept()[0].close()
            assert client.recv(1) == b""
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind(("127.0.0.1", port))
    environment("TF_CONFIG", text({"worker": [f"a:{port}"]}, TASK))
    assert cluster.declared(workers).task == Task("worker", 0)


def test_a_local_cluster():
    found = cluster.local([*servers(4), Task("evaluator", 0)])
    assert [str(member.task) for member in found] == ["chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0"]
    jobs = found[0].jobs
    assert {job: len(addresses) for job, addresses in jobs.items()} == {"chief": 1, "ps": 1, "worker": 2}
    assert len({address for addresses in jobs.values() for address in addresses}) == 4
    for member in found:
        assert cluster.parse(member.tf_config(), "local") == member


ARGV = ["python", "train.py", "strategy=multi_worker", "strategy.hosts=[a,b]", "name=it's mine", "model.sizes=[1,2]"]


def test_commands_to_type():
    found = cluster.commands(["a:1234", "b"], workers(2), ARGV)
    jobs = '{"cluster": {"worker": ["a:1234", "b:2222"]}, "task": {"type": "worker", "index": %d}}'
    words = "python train.py strategy=multi_worker 'name=it'\"'\"'s mine' 'model.sizes=[1,2]'"
    assert found == [("a:1234", f"TF_CONFIG='{jobs % 0}' {words}"), ("b:2222", f"TF_CONFIG='{jobs % 1}' {words}")]


def test_a_command_declares_what_its_host_is():
    found = cluster.commands(["a", "b", "c", "d"], servers(4), ARGV)
    for (address, line), task in zip(found, servers(4), strict=True):
        variable, *argv = shlex.split(line)
        seen = cluster.parse(variable.removeprefix("TF_CONFIG="), "TF_CONFIG")
        assert seen.task == task
        assert seen.jobs[task.job][task.index] == address
        assert argv == [word for word in ARGV if "hosts" not in word]


def test_hosts_without_a_port_get_one():
    found = cluster.commands(["a", "a", "b", "a:2223", "a", "[::1]"], workers(6), ["train", "++strategy.hosts=[a]"])
    assert [address for address, _ in found] == ["a:2222", "a:2224", "b:2222", "a:2223", "a:2225", "[::1]:2222"]
    assert all(line.endswith("}' train") for _, line in found)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["a:1", "a:1"], "strategy.hosts: worker-1 has the same address as worker-0 (a:1); each needs its own"),
        (["http://a", "b"], "strategy.hosts: address of worker-0 (http://a:2222) must be host:port, without http://"),
        (["a:99999", "b"], "strategy.hosts: port of worker-0 (a:99999) must be from 1 to 65535"),
    ],
)
def test_hosts_that_cannot_be(hosts, expected):
    with pytest.raises(ConfigError) as caught:
        cluster.commands(hosts, workers(2), ARGV)
    assert caught.value.problems == (expected,)
