"""The objects with which Kubernetes runs an experiment: an indexed Job and its headless Service.

`kubernetes_job.yaml` has them. `kubernetes_scheduler` reads what such a Job sets in its pods:
the completion index, and the host name, which differs between pods in the number at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any

import yaml

from trainer.cluster.schedulers.kubernetes_scheduler import PODS, PORT

USER_ID = 1000
"""The user and group of the image that the Dockerfile builds; they own what is in the volume."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_MAX_LABEL = 63
_NUMBER = r"(?=.*[1-9])[0-9]+(\.[0-9]+)?"
_MEMORY = rf"{_NUMBER}([KMGTPE]i|[kMGTPE])"


@dataclass(frozen=True)
class JobSpec:
    """What the objects are made of.

    Attributes:
        name: of the Job and the Service.
        arguments: of the program in each pod; the same for all.
        has_cluster: whether they reach each other: they get addresses.
        claim: the PersistentVolumeClaim of the run directories, which must exist; None: each pod
            has an empty volume of its own.
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
    """Yield what Kubernetes would refuse late, or take for something else, one line for each.

    Any other wrong option is refused by `kubectl` when the objects are created.
    """
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
    if not re.fullmatch(_MEMORY, spec.memory):
        match = re.fullmatch(rf"({_NUMBER})\s*([kKmMgGtT])i?[bB]?", spec.memory)
        hint = f"; did you mean '{match[1]}{match[3].upper()}i'?" if match else ""
        yield (
            f"--memory ({spec.memory}) must be a size above 0 with its unit, "
            f"such as 16Gi or 500M{hint}"
        )


def objects(spec: JobSpec) -> list[dict[str, Any]]:
    """Return the objects, in the order in which to create them."""
    values = {
        "name": spec.name,
        "namespace": spec.namespace,
        "pods": spec.pods,
        "max_failures": spec.max_failures,
        "subdomain": spec.name if spec.has_cluster else None,
        "grace_secs": spec.grace_secs,
        "service_account": spec.service_account,
        "user": USER_ID,
        "image": spec.image,
        "arguments": [],
        # Not an override: the number of pods may differ each time the run is continued.
        "variables": [{"name": PODS, "value": str(spec.pods)}] if spec.has_cluster else None,
        "ports": [{"name": "grpc", "containerPort": PORT}] if spec.has_cluster else None,
        "service_ports": [{"name": "grpc", "port": PORT}],
        "secrets": [{"secretRef": {"name": spec.secret}}] if spec.secret else None,
        "cpu": spec.cpu,
        "memory": spec.memory,
        "gpus": spec.gpus or None,
        "mount_path": str(spec.mount_path),
        "empty_volume": {} if spec.claim is None else None,
        "claimed_volume": None if spec.claim is None else {"claimName": spec.claim},
    }
    template = Template(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    text = template.substitute({name: json.dumps(value) for name, value in values.items()})
    service, policy, job = (_without_nulls(item) for item in yaml.safe_load_all(text))
    # A word of a command line may be more than YAML reads.
    job["spec"]["template"]["spec"]["containers"][0]["args"] = list(spec.arguments)
    return [service, policy, job] if spec.has_cluster else [job]


def _without_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _without_nulls(value) for key, value in node.items() if value is not None}
