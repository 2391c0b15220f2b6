"""The objects with which Kubernetes runs an experiment: an indexed Job and its headless Service.

As plain containers for YAML. `trainer.cluster.schedulers` reads what such a Job sets in its pods:
the completion index, and the host name, which differs between pods in the number at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainer.cluster.schedulers import KUBERNETES_PODS, KUBERNETES_PORT

USER_ID = 1000
"""The user and group of the image that the Dockerfile builds; they own what is in the volume."""

_STOPPED = [130, 143]
"""Exit codes of a run that has saved on a signal: the same command continues it."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_MAX_LABEL = 63
_IMAGE = r"[a-zA-Z0-9][\w.\-]*(:[0-9]+)?(/[\w.\-]+)*(:[\w.\-]+)?(@sha256:[0-9a-f]{64})?"
_NUMBER = r"(?=.*[1-9])[0-9]+(\.[0-9]+)?"
_CPU = rf"{_NUMBER}|(?=.*[1-9])[0-9]+m"
_MEMORY = rf"{_NUMBER}([KMGTPE]i|[kMGTPE])"
_CONTAINER = "train"
_VOLUME = "runs"


@dataclass(frozen=True)
class JobSpec:
    """What the objects are made of.

    Attributes:
        name: of the Job and the Service.
        image: the container image.
        arguments: of the program in each pod; the same for all.
        pods: number of pods.
        has_cluster: whether they reach each other: they get addresses.
        claim: the PersistentVolumeClaim of the run directories, which must exist; None: each pod
            has an empty volume of its own.
        mount_path: where the volume is mounted.
        cpu: processors that each pod gets at least, a quantity.
        memory: memory that each pod gets, and at most has, a quantity.
        gpus: NVIDIA GPUs of each pod.
        grace_secs: seconds between SIGTERM and SIGKILL.
        max_failures: failures of pods after which the Job has failed; stops do not count.
        namespace: of all objects; None: that of kubectl.
        secret: the Secret whose entries are environment variables of the pods; None: there is none.
        service_account: as which the pods act; None: the default one.
    """

    name: str
    image: str
    arguments: Sequence[str]
    pods: int
    has_cluster: bool
    claim: str | None
    mount_path: PurePosixPath
    cpu: str
    memory: str
    gpus: int
    grace_secs: int
    max_failures: int
    namespace: str | None = None
    secret: str | None = None
    service_account: str | None = None


def problems(spec: JobSpec) -> Iterator[str]:
    """Yield what Kubernetes would refuse, one line for each wrong option of the command."""
    longest = _MAX_LABEL - len(f"-{spec.pods - 1}")
    if not re.fullmatch(_LABEL, spec.name) or not spec.name[0].isalpha():
        yield (
            f"--name ({spec.name}) must consist of lower-case letters, digits and '-', "
            "begin with a letter and not end in '-'"
        )
    elif len(spec.name) > longest:
        yield (
            f"--name ({spec.name}) has {len(spec.name)} characters; at most {longest} leave room "
            "for the number of a pod"
        )
    if spec.namespace is not None and (
        not re.fullmatch(_LABEL, spec.namespace) or len(spec.namespace) > _MAX_LABEL
    ):
        yield (
            f"--namespace ({spec.namespace}) must be at most {_MAX_LABEL} lower-case letters, "
            "digits and '-', with neither end a '-'"
        )
    names = {
        "--claim": (spec.claim, "PersistentVolumeClaim"),
        "--secret": (spec.secret, "Secret"),
        "--service-account": (spec.service_account, "ServiceAccount"),
    }
    for option, (name, kind) in names.items():
        if name is not None and not re.fullmatch(_SUBDOMAIN, name):
            yield (
                f"{option} ({name}) must be the name of a {kind}: lower-case letters, digits, '-' "
                "and '.'"
            )
    if not re.fullmatch(_IMAGE, spec.image, re.ASCII):
        yield f"--image ({spec.image}) must be an image, such as registry.example/steadfast:1.0"
    yield from _resource_problems(spec)


def _resource_problems(spec: JobSpec) -> Iterator[str]:
    if not re.fullmatch(_CPU, spec.cpu):
        yield f"--cpu ({spec.cpu}) must be a number of processors above 0, such as 4, 0.5 or 500m"
    if not re.fullmatch(_MEMORY, spec.memory):
        match = re.fullmatch(rf"({_NUMBER})\s*([kKmMgGtT])i?[bB]?", spec.memory)
        hint = f"; did you mean '{match[1]}{match[3].upper()}i'?" if match else ""
        yield (
            f"--memory ({spec.memory}) must be a size above 0 with its unit, "
            f"such as 16Gi or 500M{hint}"
        )
    if spec.gpus < 0:
        yield f"--gpus ({spec.gpus}) must be >= 0"
    if spec.grace_secs < 1:
        yield f"--grace-secs ({spec.grace_secs}) must be >= 1"


def objects(spec: JobSpec) -> list[dict[str, Any]]:
    """Return the objects, in the order in which to create them."""
    if not spec.has_cluster:
        return [_job(spec)]
    return [_service(spec), _network_policy(spec), _job(spec)]


def _selector(spec: JobSpec) -> dict[str, str]:
    """Return the label that Kubernetes gives to the pods of a Job."""
    return {"batch.kubernetes.io/job-name": spec.name}


def _metadata(spec: JobSpec) -> dict[str, Any]:
    namespace = {"namespace": spec.namespace} if spec.namespace else {}
    return {"name": spec.name, **namespace}


def _service(spec: JobSpec) -> dict[str, Any]:
    """Return the headless Service, which gives each pod a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec),
        "spec": {
            "clusterIP": "None",
            # The pods look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": _selector(spec),
            "ports": [{"name": "grpc", "port": KUBERNETES_PORT}],
        },
    }


def _network_policy(spec: JobSpec) -> dict[str, Any]:
    """Return the rule that only pods of the Job reach each other: TensorFlow asks nobody's name."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(spec),
        "spec": {
            "podSelector": {"matchLabels": _selector(spec)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": _selector(spec)}}]}],
        },
    }


def _job(spec: JobSpec) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(spec),
        "spec": {
            "completions": spec.pods,
            "parallelism": spec.pods,
            "completionMode": "Indexed",
            "backoffLimit": spec.max_failures,
            # Two pods with one index would write to one run directory.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {"spec": _pod(spec)},
        },
    }


def _failure_rules() -> list[dict[str, Any]]:
    """Return which ends of a pod are no failures: another one takes its place."""
    stopped = {"containerName": _CONTAINER, "operator": "In", "values": _STOPPED}
    # Evicted, preempted, or its node drained, whether or not it could save in time.
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return [
        {"action": "Ignore", "onExitCodes": stopped},
        {"action": "Ignore", "onPodConditions": [disrupted]},
    ]


def _pod(spec: JobSpec) -> dict[str, Any]:
    return {
        **({"subdomain": spec.name} if spec.has_cluster else {}),
        "restartPolicy": "Never",  # which podFailurePolicy needs
        "terminationGracePeriodSeconds": spec.grace_secs,
        **({"serviceAccountName": spec.service_account} if spec.service_account else {}),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec)],
        "volumes": [{"name": _VOLUME, **_volume(spec)}],
    }


def _volume(spec: JobSpec) -> dict[str, Any]:
    if spec.claim is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": spec.claim}}


def _container(spec: JobSpec) -> dict[str, Any]:
    limits: dict[str, Any] = {"memory": spec.memory}
    if spec.gpus:
        limits["nvidia.com/gpu"] = spec.gpus
    cluster = {
        # Not an override: the number of pods may differ each time the run is continued.
        "env": [{"name": KUBERNETES_PODS, "value": str(spec.pods)}],
        "ports": [{"name": "grpc", "containerPort": KUBERNETES_PORT}],
    }
    return {
        "name": _CONTAINER,
        "image": spec.image,
        "command": ["steadfast"],
        "args": list(spec.arguments),
        **(cluster if spec.has_cluster else {}),
        **({"envFrom": [{"secretRef": {"name": spec.secret}}]} if spec.secret else {}),
        "resources": {"requests": {"cpu": spec.cpu, "memory": spec.memory}, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": _VOLUME, "mountPath": str(spec.mount_path)}],
    }
