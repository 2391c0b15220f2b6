"""The command `kubernetes`: what it prints is checked, complete, and understood by discovery."""

import socket

import pytest
import yaml

from tests.support.command_line import run_here
from trainer.cluster import discovery
from trainer.cluster.spec import ProcessId
from trainer.strategies.multi_worker import MultiWorker

MULTI = ("strategy=multi_worker", "--image", "registry.example/steadfast:1")
STORE = "runs_dir=s3://bucket/runs"
KINDS = ["Service", "NetworkPolicy", "Job"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def printed(*arguments):
    outcome = run_here("kubernetes", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    return list(yaml.safe_load_all(outcome.out))


def pod_of(objects):
    return objects[-1]["spec"]["template"]["spec"]


def arguments_of(objects):
    return pod_of(objects)["containers"][0]["args"]


def test_kubernetes_prints_service_and_job(tmp_path):
    outcome = run_here("kubernetes", *MULTI, "--workers", "4", "train.steps=20")
    assert outcome.out.startswith("# 4 pods; the PersistentVolumeClaim runs must be there.\n")
    assert "&id" not in outcome.out  # no anchors: people read it
    objects = list(yaml.safe_load_all(outcome.out))
    assert [item["kind"] for item in objects] == KINDS
    assert arguments_of(objects) == [
        "strategy=multi_worker", "train.steps=20", "runs_dir=/shared/runs",
    ]  # fmt: skip
    assert pod_of(objects)["containers"][0]["env"] == [{"name": "STEADFAST_PODS", "value": "4"}]
    assert list(tmp_path.iterdir()) == []
    other = printed(*MULTI, "--workers", "2", "train.steps=20")  # continues the run
    assert arguments_of(other) == arguments_of(objects)
    assert [item["metadata"] for item in other] == [item["metadata"] for item in objects]


@pytest.mark.parametrize(
    ("arguments", "pods"),
    [
        (["strategy=multi_worker", "strategy.workers=3"], 3),
        (["strategy=multi_worker", "--workers", "1"], 1),
        (["strategy=auto", "--workers", "5"], 5),
        (["strategy=parameter_server", "strategy.ps=2", "--workers", "3"], 6),
    ],
)
def test_kubernetes_starts_a_pod_for_each_process(arguments, pods):
    objects = printed(*arguments, "--image", "a")
    assert [item["kind"] for item in objects] == KINDS
    assert objects[-1]["spec"]["completions"] == objects[-1]["spec"]["parallelism"] == pods
    assert objects[-1]["spec"]["backoffLimit"] == 3 * pods


def test_kubernetes_prints_a_job_alone_for_one_process_named_like_the_run():
    (job,) = printed("strategy=mirrored", "--image", "a", "restart.max_restarts=5", "name=My_run")
    assert (job["kind"], job["spec"]["completions"], job["spec"]["backoffLimit"]) == ("Job", 1, 5)
    assert job["metadata"]["name"].startswith("my-run-")


def test_discovery_understands_the_pods(monkeypatch):
    """Kubernetes gives a pod its index, and the host name <job>-<index>.<subdomain>."""
    index = 2
    objects = printed(*MULTI, "--workers", "3", "--name", "my-run")
    pod = pod_of(objects)
    name = objects[-1]["metadata"]["name"]
    domain = f"{pod['subdomain']}.default.svc.cluster.local"
    monkeypatch.setattr(socket, "getfqdn", lambda: f"{name}-{index}.{domain}")
    monkeypatch.setattr(discovery.ports, "is_in_use", lambda port: False)
    strategy = MultiWorker()
    (variable,) = pod["containers"][0]["env"]
    environment = {"JOB_COMPLETION_INDEX": str(index), variable["name"]: variable["value"]}
    cluster = discovery.declared_cluster(strategy.process_ids, environment)
    port = pod["containers"][0]["ports"][0]["containerPort"]
    assert cluster.process_id == ProcessId("worker", index)
    addresses = [f"my-run-{number}.{domain}:{port}" for number in range(3)]
    assert cluster.jobs == {"worker": addresses}


def test_pods_find_each_other_and_stopped_or_disrupted_ones_are_no_failures():
    service, policy, job = printed(*MULTI, "--workers", "4", "--name", "train")
    label = {"batch.kubernetes.io/job-name": "train"}
    expected = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": label}
    assert service["spec"].items() >= expected.items()
    assert policy["spec"]["podSelector"] == {"matchLabels": label}
    expected = {"completionMode": "Indexed", "podReplacementPolicy": "Failed"}
    assert job["spec"].items() >= expected.items()
    pod = pod_of([job])
    # Kubernetes accepts a policy for failures with `Never` alone.
    assert (pod["subdomain"], pod["restartPolicy"]) == (service["metadata"]["name"], "Never")
    name = pod["containers"][0]["name"]
    codes = {"containerName": name, "operator": "In", "values": [130, 143]}
    assert job["spec"]["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onExitCodes": codes},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def test_paths_in_the_claim_are_not_looked_for_here():
    arguments = ("dataset=npy", "--image", "a", "dataset.path=/shared/data/x")
    assert "dataset.path=/shared/data/x" in arguments_of(printed(*arguments))
    outcome = run_here("kubernetes", *arguments, "runs_dir=/other/runs")
    assert outcome.err.startswith("error: dataset.path (/shared/data/x):")
    # Only while the command checks.
    assert run_here("dataset=npy", "dataset.path=/shared/data/x", "mode=plan").code == 2


def test_run_in_a_store_needs_no_claim():
    outcome = run_here("kubernetes", *MULTI, "--workers", "4", STORE, "--secret", "keys")
    assert outcome.out.startswith(
        "# 4 pods; the Secret keys must be there, and allow them to use s3://bucket/runs.\n"
    )
    objects = list(yaml.safe_load_all(outcome.out))
    assert [item["kind"] for item in objects] == KINDS
    assert arguments_of(objects) == ["strategy=multi_worker", STORE, "store.work_dir=/work"]
    pod = pod_of(objects)
    assert pod["volumes"] == [{"name": "runs", "emptyDir": {}}]
    (container,) = pod["containers"]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/work"}]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "serviceAccountName" not in pod


def test_objects_fit_the_schemas_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate")
    commands = [
        (*MULTI, "--workers", "4", "--gpus", "1", "--namespace", "team"),
        ("--image", "a", "train.steps=3"),
        ("strategy=parameter_server", "--image", "a"),
        (*MULTI, STORE, "--secret", "keys", "--service-account", "trainer"),
    ]
    for command in commands:
        for item in printed(*command):
            validate.validate(item, validate.latest_version(), strict=True)
