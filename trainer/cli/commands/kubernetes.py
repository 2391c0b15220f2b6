"""The command `kubernetes`: prints what trains an experiment on Kubernetes. No TensorFlow."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import PurePosixPath

import yaml

from trainer.cli.commands.command_arguments import Parser
from trainer.cli.compose import compose
from trainer.cli.overrides import override_key
from trainer.cluster import discovery
from trainer.cluster.schedulers.kubernetes_scheduler import PORT
from trainer.cluster.schedulers.scheduler import Allocation
from trainer.cluster.spec import Cluster
from trainer.config import addresses
from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.errors import DONE, ConfigError
from trainer.launch import remote_run
from trainer.launch.engines import kubernetes_job
from trainer.launch.engines.kubernetes_job import JobSpec
from trainer.launch.run_context import check
from trainer.runs.identity import run_path
from trainer.strategies import select

_RUNS_DIR = "/shared/runs"
_CLAIM = "runs"
_WORK_DIR = "/work"
_WORKERS = "strategy.workers"


def run(arguments: Sequence[str]) -> int:
    """Print the Service and the Job of an experiment, after checking it as a pod will."""
    args = _parser().parse_intermixed_args(arguments)
    if args.image is None:
        raise ConfigError("--image (missing) must name the container image of the pods")
    storage = _storage(args.overrides, args.claim)
    overrides = storage.overrides
    # What is in the claim cannot be seen here.
    elsewhere = (
        nullcontext() if storage.address else constraints.paths_elsewhere(storage.mount_path)
    )
    with elsewhere:
        experiment = compose(overrides, args.config_dir)
        sized = experiment
        if args.workers is not None:
            _check_workers(experiment, args.workers, overrides)
            sized = compose([*overrides, f"{_WORKERS}={args.workers}"], args.config_dir)
    name = args.name or re.sub(r"[^a-z0-9-]", "-", run_path(experiment).name.lower())
    pods, has_cluster = _check(experiment, sized, name)
    needed = experiment.preemption.grace_secs
    if needed is not None and args.grace_secs <= needed:
        raise ConfigError(
            f"--grace-secs ({args.grace_secs}) must be longer than preemption.grace_secs "
            f"({needed:g})"
        )
    options = ["--config-dir", args.config_dir] if args.config_dir else []
    spec = JobSpec(
        name,
        args.image,
        [*options, *overrides, storage.folder],
        pods,
        has_cluster,
        storage.claim,
        storage.mount_path,
        args.cpu,
        args.memory,
        args.gpus,
        args.grace_secs,
        experiment.restart.max_restarts * pods,
        args.namespace,
        args.secret,
        args.service_account,
    )
    if problems := list(kubernetes_job.problems(spec)):
        raise ConfigError(*problems)
    print(f"# {pods} pod{'s' * (pods != 1)}; {_needs(spec, storage)}.")
    print(yaml.safe_dump_all(kubernetes_job.objects(spec), sort_keys=False), end="")
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


@dataclass(frozen=True)
class _Storage:
    """Where the run is.

    Attributes:
        overrides: those of the pods, but for `folder`, which this machine need not have.
        claim: of the volume; None: each pod has an empty one of its own.
        address: in an object store; None: the run is in the volume.
    """

    overrides: list[str]
    folder: str
    mount_path: PurePosixPath
    claim: str | None
    address: str | None


def _storage(overrides: Sequence[str], claim: str | None) -> _Storage:
    """Return where the run is that overrides name, in a volume of this claim or in a store."""
    values = {override_key(item): item.partition("=")[2].strip("'\"") for item in overrides}
    places = (values.get("resume", ""), values.get("runs_dir", _RUNS_DIR))
    address = next(filter(addresses.is_remote, places), None)
    if address is not None and claim is not None:
        raise ConfigError(f"--claim ({claim}) is not used: the run is in {address}; leave it out")
    key, default = ("runs_dir", _RUNS_DIR) if address is None else ("store.work_dir", _WORK_DIR)
    text = values.get(key, default)
    path = PurePosixPath(text)
    depth = 3 if address is None else 2
    if not path.is_absolute() or len(path.parts) < depth or not re.fullmatch(r"[\w./-]+", text):
        where = "folder of the claim, which is mounted above it," if address is None else "folder,"
        raise ConfigError(f"{key} ({text}) must be a {where} such as {default}")
    others = [item for item in overrides if override_key(item) != key]
    folder = f"{key}={path}"
    if address is None:
        return _Storage(others, folder, path.parent, claim or _CLAIM, None)
    return _Storage(others, folder, path, None, address)


def _needs(spec: JobSpec, storage: _Storage) -> str:
    """Return what must be there before the objects are created, for people."""
    if storage.address is None:
        return f"the PersistentVolumeClaim {spec.claim} must be there"
    names = {"Secret": spec.secret, "ServiceAccount": spec.service_account}
    objects = " and ".join(f"the {kind} {name}" for kind, name in names.items() if name)
    if not objects:
        return f"they must be allowed to use {storage.address}: --secret or --service-account"
    return f"{objects} must be there, and allow them to use {storage.address}"


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
        experiment: what the pods are given.
        sized: the same with the number of workers.

    Returns:
        The number of pods, and whether they reach each other.
    """
    if not experiment.trains:
        raise ConfigError(
            f"mode ({experiment.mode}) must be train: the Job trains a run to its end"
        )
    choice = (experiment.choices or {}).get("strategy", "")
    if experiment.strategy.get("hosts"):
        raise ConfigError("strategy.hosts is for clusters that are started by hand; remove it")
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
