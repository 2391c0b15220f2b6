"""The objects of a Job: what Kubernetes would refuse, and what they say about the end of a pod."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from trainer.errors import CRASHED, WRONG_INPUT
from trainer.launch.engines import kubernetes_job
from trainer.launch.engines.kubernetes_job import JobSpec

SPEC = JobSpec(
    name="train",
    image="registry.example:5000/team/steadfast:1.0",
    arguments=["strategy=multi_worker", "train.steps=20"],
    pods=4,
    has_cluster=True,
    claim="runs",
    mount_path=PurePosixPath("/shared"),
    cpu="2",
    memory="4Gi",
    gpus=0,
    grace_secs=300,
    max_failures=12,
)


def job_of(spec):
    (job,) = (item for item in kubernetes_job.objects(spec) if item["kind"] == "Job")
    return job["spec"]


def container_of(spec):
    (container,) = job_of(spec)["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("name", "cnn-digits-5b4fb491", None),
        ("name", "2nd", "begin with a letter"),
        ("name", "x" * 62, "has 62 characters; at most 61 leave room"),
        ("memory", "1.5G", None),
        ("memory", "0Gi", "above 0"),
        ("memory", "400m", "did you mean '400Mi'?"),
    ],
)
def test_kubernetes_job_names_what_kubernetes_would_refuse_late(option, value, expected):
    problems = list(kubernetes_job.problems(replace(SPEC, **{option: value})))
    assert len(problems) == (expected is not None)
    assert (expected or "") in "".join(problems)


def test_stopped_and_disrupted_pods_are_no_failures():
    rules = job_of(SPEC)["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore"]
    codes = rules[0]["onExitCodes"]["values"]
    assert codes == [130, 143]
    assert not {CRASHED, WRONG_INPUT, 0, 137} & set(codes)
    assert rules[1]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert rules[0]["onExitCodes"]["containerName"] == container_of(SPEC)["name"]
    # Kubernetes accepts the policy with this alone.
    assert job_of(SPEC)["template"]["spec"]["restartPolicy"] == "Never"
    assert job_of(SPEC)["podReplacementPolicy"] == "Failed"
    assert job_of(SPEC)["backoffLimit"] == 12


def test_pods_find_each_other_by_the_service():
    service, policy, job = kubernetes_job.objects(replace(SPEC, namespace="team"))
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    label = {"batch.kubernetes.io/job-name": "train"}
    assert service["spec"]["selector"] == label
    assert policy["spec"]["podSelector"] == {"matchLabels": label}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    assert {item["metadata"]["namespace"] for item in (service, policy, job)} == {"team"}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert job["spec"]["completionMode"] == "Indexed"
