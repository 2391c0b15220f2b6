"""The Job in the docs: its objects fit together, and discovery understands its pods."""

import socket

import pytest

from tests.support.pods import job_of
from trainer.cluster import discovery
from trainer.cluster.spec import ProcessId
from trainer.strategies.multi_worker import MultiWorker


def test_discovery_understands_the_pods(monkeypatch):
    """Kubernetes gives a pod its index, and the host name <job>-<index>.<subdomain>."""
    service, _, job = job_of([], 3)
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    domain = f"{pod['subdomain']}.default.svc.cluster.local"
    monkeypatch.setattr(socket, "getfqdn", lambda: f"{job['metadata']['name']}-2.{domain}")
    monkeypatch.setattr(discovery.ports, "is_in_use", lambda port: False)
    (container,) = pod["containers"]
    (variable,) = container["env"]
    environment = {"JOB_COMPLETION_INDEX": "2", variable["name"]: variable["value"]}
    cluster = discovery.declared_cluster(MultiWorker().process_ids, environment)
    port = container["ports"][0]["containerPort"]
    assert cluster.process_id == ProcessId("worker", 2)
    assert cluster.jobs == {"worker": [f"train-{number}.{domain}:{port}" for number in range(3)]}


def test_objects_fit_the_schemas_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate")
    for item in job_of(["train.steps=3"], 4):
        validate.validate(item, validate.latest_version(), strict=True)
