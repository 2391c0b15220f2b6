"""The command `kubernetes`: prints what trains an experiment on Kubernetes. No TensorFlow.

That is an indexed Job and its headless Service, from `shells/job.yaml`. `kubernetes_scheduler`
reads what such a Job sets in its pods: the completion index, and the host name, which differs
between pods in the number at its end.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import PurePosixPath
from string import Template
from typing import Any

import yaml

from trainer.cli.commands.command_arguments import Parser
from trainer.cli.compose import compose
from trainer.cli.overrides import override_key
from trainer.cluster import discovery
from trainer.cluster.schedulers.kubernetes_scheduler import PODS, PORT
from trainer.cluster.schedulers.scheduler import Allocation
from trainer.cluster.spec import Cluster
from trainer.config import addresses
from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.errors import DONE, ConfigError
from trainer.launch import remote_run
from trainer.launch.run_context import check
from trainer.runs.identity import run_path
from trainer.strategies import select

_USER_ID = 1000
"""The user and group of the image that the Dockerfile builds; they own what is in the volume."""

_RUNS_DIR = "/shared/runs"
_CLAIM = "runs"
_WORK_DIR = "/work"
_WORKERS = "strategy.workers"
_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_MAX_LABEL = 63
_NUMBER = r"(?=.*[1-9])[0-9]+(\.[0-9]+)?"
_MEMORY = rf"{_NUMBER}([KMGTPE]i|[kMGTPE])"


def run(arguments: Sequence[str]) -> int:
    """Print the Service and the Job of an experiment, after checking it as a pod will."""
    args = _parser().parse_intermixed_args(arguments)
    if args.image is None:
        raise ConfigError("--image (missing) must name the container image of the pods")
    address = _take_storage(args)
    # What is in the claim cannot be seen here.
    elsewhere = nullcontext() if address else constraints.paths_elsewhere(args.mount_path)
    with elsewhere:
        experiment = sized = compose(args.overrides, args.config_dir)
        if args.workers is not None:
            _check_workers(experiment, args.workers, args.overrides)
            sized = compose([*args.overrides, f"{_WORKERS}={args.workers}"], args.config_dir)
    name = args.name or re.sub(r"[^a-z0-9-]", "-", run_path(experiment).name.lower())
    pods, has_cluster = _check(experiment, sized, name)
    needed = experiment.preemption.grace_secs
    if needed is not None and args.grace_secs <= needed:
        raise ConfigError(
            f"--grace-secs ({args.grace_secs}) must be longer than preemption.grace_secs "
            f"({needed:g})"
        )
    if problems := list(_problems(name, pods, args.memory)):
        raise ConfigError(*problems)
    objects = _objects(args, name, pods, has_cluster, experiment.restart.max_restarts * pods)
    print(f"# {pods} pod{'s' * (pods != 1)}; {_needs(args, address)}.")
    print(yaml.safe_dump_all(objects, sort_keys=False), end="")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "kubernetes",
        "The claim must allow access from all nodes (ReadWriteMany). It is mounted at the folder "
        f"above runs_dir, which is {_RUNS_DIR} unless it is given. A run in an object store "
        "(runs_dir=s3://bucket/runs) needs none. Example: python train.py kubernetes "
        "strategy=multi_worker --workers 4 --image registry.example/steadfast:1 "
        "| kubectl apply -f -",
    )
    parser.add_argument("overrides", nargs="*", help="the experiment, as for training")
    parser.add_argument("--image", help="the container image; needed")
    parser.add_argument("--workers", type=int, metavar="N", help="number of workers")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="of each pod; 0")
    parser.add_argument("--cpu", default="2", metavar="CPUS", help="of each pod, at least; 2")
    parser.add_argument("--memory", default="4Gi", metavar="SIZE", help="of each pod; 4Gi")
    parser.add_argument(
        "--claim", help=f"the PersistentVolumeClaim of the run directories; {_CLAIM}"
    )
    parser.add_argument(
        "--secret", help="its entries are variables of the pods, such as AWS_ACCESS_KEY_ID"
    )
    parser.add_argument("--service-account", metavar="NAME", help="as which the pods act")
    parser.add_argument("--namespace", help="of all objects; that of kubectl")
    parser.add_argument("--name", help="of all objects; that of the run directory")
    parser.add_argument(
        "--grace-secs",
        type=int,
        default=300,
        metavar="SECS",
        help="how long a pod may take to save before it is killed; 300",
    )
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="own choices, also in the image")
    return parser


def _take_storage(args: argparse.Namespace) -> str | None:
    """Find where the run is: in a volume, or in a store, whose address is returned.

    Sets `claim`, or None without a volume, and `mount_path`; moves the override that this machine
    need not be able to follow from `overrides` to `folder`.
    """
    values = {override_key(item): item.partition("=")[2].strip("'\"") for item in args.overrides}
    places = (values.get("resume", ""), values.get("runs_dir", _RUNS_DIR))
    address = next(filter(addresses.is_remote, places), None)
    if address is not None and args.claim is not None:
        raise ConfigError(
            f"--claim ({args.claim}) is not used: the run is in {address}; leave it out"
        )
    key, default = ("runs_dir", _RUNS_DIR) if address is None else ("store.work_dir", _WORK_DIR)
    text = values.get(key, default)
    path = PurePosixPath(text)
    depth = 3 if address is None else 2
    if not path.is_absolute() or len(path.parts) < depth or not re.fullmatch(r"[\w./-]+", text):
        where = "folder of the claim, which is mounted above it," if address is None else "folder,"
        raise ConfigError(f"{key} ({text}) must be a {where} such as {default}")
    args.overrides = [item for item in args.overrides if override_key(item) != key]
    args.folder = f"{key}={path}"
    args.mount_path = path.parent if address is None else path
    args.claim = (args.claim or _CLAIM) if address is None else None
    return address


def _needs(args: argparse.Namespace, address: str | None) -> str:
    if address is None:
        return f"the PersistentVolumeClaim {args.claim} must be there"
    names = {"Secret": args.secret, "ServiceAccount": args.service_account}
    objects = " and ".join(f"the {kind} {name}" for kind, name in names.items() if name)
    if not objects:
        return f"they must be allowed to use {address}: --secret or --service-account"
    return f"{objects} must be there, and allow them to use {address}"


def _problems(name: str, pods: int, memory: str) -> Iterator[str]:
    """Yield what Kubernetes would refuse late, or take for something else, one line for each.

    Any other wrong option is refused by `kubectl` when the objects are created.
    """
    longest = _MAX_LABEL - len(f"-{pods - 1}")
    if not re.fullmatch(_LABEL, name):
        yield (
            f"--name ({name}) must consist of lower-case letters, digits and '-', "
            "begin with a letter and not end in '-'"
        )
    elif len(name) > longest:
        yield (
            f"--name ({name}) has {len(name)} characters; at most {longest} leave room "
            "for the number of a pod"
        )
    if not re.fullmatch(_MEMORY, memory):
        match = re.fullmatch(rf"({_NUMBER})\s*([kKmMgGtT])i?[bB]?", memory)
        hint = f"; did you mean '{match[1]}{match[3].upper()}i'?" if match else ""
        yield (
            f"--memory ({memory}) must be a size above 0 with its unit, such as 16Gi or 500M{hint}"
        )


def _objects(
    args: argparse.Namespace, name: str, pods: int, has_cluster: bool, max_failures: int
) -> list[dict[str, Any]]:
    """Return the objects, in the order in which to create them.

    Args:
        has_cluster: whether the pods reach each other: they get addresses.
        max_failures: failures of pods after which the Job has failed; stops do not count.
    """
    values = {
        "name": name,
        "namespace": args.namespace,
        "pods": pods,
        "max_failures": max_failures,
        "subdomain": name if has_cluster else None,
        "grace_secs": args.grace_secs,
        "service_account": args.service_account,
        "user": _USER_ID,
        "image": args.image,
        "arguments": [],
        # Not an override: the number of pods may differ each time the run is continued.
        "variables": [{"name": PODS, "value": str(pods)}] if has_cluster else None,
        "ports": [{"name": "grpc", "containerPort": PORT}] if has_cluster else None,
        "service_ports": [{"name": "grpc", "port": PORT}],
        "secrets": [{"secretRef": {"name": args.secret}}] if args.secret else None,
        "cpu": args.cpu,
        "memory": args.memory,
        "gpus": args.gpus or None,
        "mount_path": str(args.mount_path),
        "empty_volume": {} if args.claim is None else None,
        "claimed_volume": None if args.claim is None else {"claimName": args.claim},
    }
    template = importlib.resources.files(__package__).joinpath("shells/job.yaml")
    text = Template(template.read_text(encoding="utf-8")).substitute(
        {key: json.dumps(value) for key, value in values.items()}
    )
    service, policy, job = (_without_nulls(item) for item in yaml.safe_load_all(text))
    # A word of a command line may be more than YAML reads.
    options = ["--config-dir", args.config_dir] if args.config_dir else []
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [*options, *args.overrides, args.folder]
    return [service, policy, job] if has_cluster else [job]


def _without_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _without_nulls(value) for key, value in node.items() if value is not None}


def _check_workers(experiment: Experiment, workers: int, overrides: Sequence[str]) -> None:
    """Refuse a number of workers that the strategy does not take, or takes from an override."""
    if _WORKERS in map(override_key, overrides):
        raise ConfigError(f"--workers ({workers}) and {_WORKERS} are the same; leave one out")
    if "workers" not in experiment.strategy:
        choice = (experiment.choices or {}).get("strategy", "")
        raise ConfigError(
            f"--workers ({workers}) needs a strategy of several processes, and strategy={choice} "
            "is none; add strategy=multi_worker"
        )


def _check(experiment: Experiment, sized: Experiment, name: str) -> tuple[int, bool]:
    """Check an experiment as its first pod will.

    Args:
        sized: the same with the number of workers.

    Returns:
        The number of pods, and whether they reach each other.
    """
    if not experiment.trains:
        raise ConfigError(
            f"mode ({experiment.mode}) must be train: the Job trains a run to its end"
        )
    choice = (experiment.choices or {}).get("strategy", "")
    strategy = select.select_strategy(experiment)
    process_ids = select.select_strategy(sized).process_ids(None)
    if strategy.uses_declared_cluster and not process_ids:
        raise ConfigError(
            f"strategy={choice} does not say how many pods there are; add --workers N"
        )
    count = len(process_ids) if strategy.uses_declared_cluster else 0
    cluster = Cluster()
    if count:
        pods = [f"{name}-{index}.{name}:{PORT}" for index in range(count)]
        allocation = Allocation("Kubernetes", pods, 0)
        cluster = discovery.allocated_cluster(strategy.process_ids, allocation)
    strategy, _ = strategy.resolve(cluster)
    check(experiment, strategy, cluster)
    remote_run.check(experiment, strategy, cluster.source if count else None)
    return count or 1, count > 0
