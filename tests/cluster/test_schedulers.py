"""What every scheduler does; allocations as Slurm and Kubernetes describe them."""

import itertools
import json
import socket
from importlib.metadata import EntryPoint

import pytest

from trainer.cluster import discovery
from trainer.cluster.schedulers import kubernetes_scheduler, scheduler, slurm_scheduler
from trainer.cluster.schedulers.scheduler import Allocation, schedulers
from trainer.cluster.spec import ProcessId
from trainer.errors import ConfigError

STEP = {
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "gpu[01-02],login1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "3",
}
PODS = {"JOB_COMPLETION_INDEX": "2", "STEADFAST_PODS": "3"}
TWO = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
IN_POD = {**PODS, **STEP}
DECLARED = {
    "Kubernetes": (PODS, ["train-0.peers", "train-1.peers", "train-2.peers"], 2),
    "Slurm": (STEP, ["gpu01", "gpu01", "gpu02", "gpu02", "login1"], 3),
    "Slurm in a pod": (IN_POD, ["gpu01", "gpu01", "gpu02", "gpu02", "login1"], 3),
    "TF_CONFIG": ({**IN_POD, "TF_CONFIG": json.dumps(TWO)}, ["a", "b"], 1),
}
"""Who declares a cluster -> its environment, the hosts of the processes, and the own number."""
SILENT = [
    {},
    # An allocation or a batch script: the job has four tasks, but nothing has started them.
    {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
    # A shell that is a step itself.
    {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
]


def workers(count):
    return [ProcessId("worker", number) for number in range(count or 0)]


@pytest.mark.parametrize("source", DECLARED)
def test_environment_declares_the_hosts_and_the_place_among_them(monkeypatch, source):
    environment, hosts, number = DECLARED[source]
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-2.peers")
    monkeypatch.setattr(discovery, "_check_port", lambda cluster: None)
    cluster = discovery.declared_cluster(workers, environment)
    assert cluster.source == source.removesuffix(" in a pod")
    assert cluster.process_id == ProcessId("worker", number)
    assert [address.partition(":")[0] for address in cluster.jobs["worker"]] == hosts
    assert len(set(cluster.jobs["worker"])) == len(hosts)


@pytest.mark.parametrize("environment", SILENT)
def test_environment_of_one_process_declares_no_cluster(environment):
    assert discovery.declared_cluster(workers, environment) is None


def test_jobs_that_are_started_again_and_unused_nodes_are_known():
    for environment, starts_again in (({}, 0), (STEP, 1), (PODS, 1), (IN_POD, 2)):
        assert sum(x.starts_jobs_again(environment) for x in schedulers()) == starts_again
    nodes = [{"SLURM_JOB_NUM_NODES": "2"}, {**STEP, "SLURM_STEP_NUM_NODES": "1"}, PODS, {}]
    warnings = [sum(bool(x.warning(environment)) for x in schedulers()) for environment in nodes]
    assert warnings == [1, 0, 0, 0]


def error_of(call, *arguments):
    """Return the one line of the ConfigError that a call raises."""
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def slurm_allocation(environment):
    return slurm_scheduler.allocation(environment, 0)


def kubernetes_allocation(environment, hostname, count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getfqdn", hostname)
        return kubernetes_scheduler.allocation(environment, count)


def base_port(**changed):
    return int(slurm_allocation({**STEP, **changed}).addresses[0].rpartition(":")[2])


def test_slurm_tasks_are_assigned_in_blocks_or_cyclically():
    allocation = slurm_allocation(STEP)
    port = base_port()
    tasks = [("gpu01", 0), ("gpu01", 1), ("gpu02", 0), ("gpu02", 1), ("login1", 0)]
    addresses = [f"{host}:{port + number}" for host, number in tasks]
    assert allocation == Allocation("Slurm", addresses, 3)
    cyclic = slurm_allocation({**STEP, "SLURM_DISTRIBUTION": "cyclic:block"})
    assert cyclic.addresses == [addresses[number] for number in (0, 2, 4, 1, 3)]
    assert slurm_allocation({**STEP, "SLURM_DISTRIBUTION": "block:cyclic"}) == allocation


@pytest.mark.parametrize("count", [16, 17, 64, 20_000])
def test_slurm_jobs_with_many_tasks_on_a_node_have_ports_of_their_own(count):
    many = {"SLURM_STEP_NUM_TASKS": str(count), "SLURM_STEP_NODELIST": "gpu1"}
    many["SLURM_STEP_TASKS_PER_NODE"] = str(count)
    bases = {base_port(**many, SLURM_STEP_ID=str(step)) for step in range(100)}
    assert min(bases) >= 20000
    assert all(other - base >= count for base, other in itertools.pairwise(sorted(bases)))


def test_slurm_jobs_steps_and_restarts_have_different_ports():
    jobs = [base_port(SLURM_JOB_ID=str(job)) for job in range(1000, 1625)]
    steps = [base_port(SLURM_STEP_ID=str(step)) for step in range(31)]
    again = [
        base_port(SLURM_RESTART_COUNT=str(restarts), SLURM_STEP_ID=str(step))
        for restarts in range(10)
        for step in range(2)
    ]
    for bases in (jobs, steps, again):
        assert all(20000 <= port <= 29999 - 15 for port in bases)
        assert len(set(bases)) == len(bases)
    assert again[0] == base_port()
    assert abs(base_port(SLURM_JOB_ID="7") - base_port(SLURM_JOB_ID="8")) >= 16


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[01-03,7],login1", ["gpu01", "gpu02", "gpu03", "gpu7", "login1"]),
        ("r[1-2]n[1-4]", [f"r{rack}n{node}" for rack in (1, 2) for node in (1, 2, 3, 4)]),
        ("n[9-10]-ib.org", ["n9-ib.org", "n10-ib.org"]),
    ],
)
def test_slurm_host_lists_are_expanded(text, hosts):
    tasks = {
        "SLURM_STEP_NUM_TASKS": str(len(hosts)), "SLURM_PROCID": "0",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{len(hosts)})",
    }  # fmt: skip
    allocation = slurm_allocation({**STEP, "SLURM_STEP_NODELIST": text, **tasks})
    assert [address.partition(":")[0] for address in allocation.addresses] == hosts


@pytest.mark.parametrize(
    ("hostname", "index", "addresses"),
    [
        ("train-1.peers.lab.org", "1", [f"train-{n}.peers.lab.org:2222" for n in range(3)]),
        # A JobSet's: the number of the job stands before the pod's.
        ("set-workers-0-2.set", "2", [f"set-workers-0-{n}.set:2222" for n in range(3)]),
        ("a-0-0", "0", ["a-0-0:2222", "a-0-1:2222", "a-0-2:2222"]),
    ],
)
def test_kubernetes_addresses_follow_the_host_name(hostname, index, addresses):
    allocation = kubernetes_allocation({"JOB_COMPLETION_INDEX": index}, lambda: hostname, 3)
    assert allocation == Allocation("Kubernetes", addresses, int(index))


def test_kubernetes_needs_the_number_of_pods():
    for variables, problem in (
        ({**PODS, "STEADFAST_PODS": "2"}, "JOB_COMPLETION_INDEX (2) is out of range: STEADFAST_PO"),
        ({"JOB_COMPLETION_INDEX": "0"}, "set STEADFAST_PODS in the pods"),
    ):
        error = error_of(kubernetes_allocation, variables, lambda: "train-1.peers", 0)
        assert problem in error


def test_scheduler_of_another_project_is_found_by_its_entry_point(monkeypatch, tmp_path):
    (tmp_path / "my_lsf.py").write_text(
        "from trainer.cluster.schedulers.scheduler import Allocation\n"
        "def allocation(environment, count):\n"
        "    return Allocation('LSF', ['a:1', 'b:1'], 1) if 'LSB_JOBID' in environment else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("lsf", "my_lsf", "steadfast.schedulers")
    monkeypatch.setattr(scheduler, "entry_points", lambda group: [point])
    monkeypatch.setattr(scheduler, "schedulers", scheduler.schedulers.__wrapped__)
    assert scheduler.allocation({}, 0) is None
    assert scheduler.allocation({"LSB_JOBID": "7"}, 0).source == "LSF"
