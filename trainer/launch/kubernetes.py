"""The command `kubernetes`: prints what trains an experiment on Kubernetes. No TensorFlow."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import yaml

from trainer.cli.commands.arguments import Parser
from trainer.cli.compose import compose
from trainer.cli.overrides import override_key
from trainer.cluster import discovery, kubernetes_job
from trainer.cluster.kubernetes_job import JobSpec
from trainer.cluster.schedulers import kubernetes_allocation
from trainer.cluster.spec import Cluster
from trainer.config import constraints
from trainer.config.schema import Experiment
from trainer.errors import DONE, ConfigError
from trainer.launch.resolved_run import ResolvedRun, check
from trainer.runs.identity import run_name
from trainer.strategies import select

_RUNS_DIR = "/shared/runs"
_WORKERS = "strategy.workers"


def run(arguments: Sequence[str]) -> int:
    """Print the Service and the Job of an experiment, after checking it as a pod will.

    Raises:
        ConfigError: an option or an override is wrong.
    """
    args = _parser().parse_intermixed_args(arguments)
    if args.image is None:
        raise ConfigError("--image (missing) must name the container image of the pods")
    runs_dir = _runs_dir(args.overrides)
    overrides = [item for item in args.overrides if override_key(item) != "runs_dir"]
    with constraints.paths_elsewhere(runs_dir.parent):
        experiment = compose(overrides, args.config_dir)
        sized = experiment
        if args.workers is not None:
            _check_workers(experiment, args.workers, overrides)
            sized = compose([*overrides, f"{_WORKERS}={args.workers}"], args.config_dir)
    name = args.name or re.sub(r"[^a-z0-9-]", "-", run_name(experiment).lower())
    pods, has_cluster = _check(experiment, sized, name)
    _check_grace(experiment, args.grace_secs)
    options = ["--config-dir", args.config_dir] if args.config_dir else []
    spec = JobSpec(
        name,
        args.image,
        [*options, *overrides, f"runs_dir={runs_dir}"],
        pods,
        has_cluster,
        args.claim,
        runs_dir.parent,
        args.cpu,
        args.memory,
        args.gpus,
        args.grace_secs,
        experiment.restart.max_restarts * pods,
        args.namespace,
    )
    if problems := list(kubernetes_job.problems(spec)):
        raise ConfigError(*problems)
    print(f"# {pods} pod{'s' * (pods != 1)}; the PersistentVolumeClaim {args.claim} must be there.")
    print(yaml.safe_dump_all(kubernetes_job.objects(spec), sort_keys=False), end="")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "kubernetes",
        "The claim must allow access from all nodes (ReadWriteMany). It is mounted at the folder "
        f"above runs_dir, which is {_RUNS_DIR} unless it is given. Example: python train.py "
        "kubernetes strategy=multi_worker --workers 4 --image registry.example/steadfast:1 "
        "| kubectl apply -f -",
    )
    parser.add_argument("overrides", nargs="*", help="the experiment, as for training")
    parser.add_argument("--image", help="the container image; needed")
    parser.add_argument("--workers", type=int, metavar="N", help="number of workers")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="of each pod; 0")
    parser.add_argument("--cpu", default="2", metavar="CPUS", help="of each pod, at least; 2")
    parser.add_argument("--memory", default="4Gi", metavar="SIZE", help="of each pod; 4Gi")
    parser.add_argument(
        "--claim", default="runs", help="the PersistentVolumeClaim of the run directories; runs"
    )
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


def _runs_dir(overrides: Sequence[str]) -> PurePosixPath:
    """Return the folder of the run directories in the pods.

    Raises:
        ConfigError: it cannot be in a volume.
    """
    values = [item.partition("=")[2] for item in overrides if override_key(item) == "runs_dir"]
    text = values[-1].strip("'\"") if values else _RUNS_DIR
    path = PurePosixPath(text)
    if not path.is_absolute() or len(path.parts) < 3 or not re.fullmatch(r"[\w./-]+", text):
        raise ConfigError(
            f"runs_dir ({text}) must be a folder of the claim, which is mounted above it, such as "
            f"{_RUNS_DIR}"
        )
    return path


def _check_workers(experiment: Experiment, workers: int, overrides: Sequence[str]) -> None:
    """Refuse a number of workers that the strategy does not take, or takes from an override.

    Raises:
        ConfigError: it is one.
    """
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
        name: of the Job.

    Returns:
        The number of pods, and whether they reach each other.

    Raises:
        ConfigError: it cannot be trained there.
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
        environment = {"JOB_COMPLETION_INDEX": "0"}
        allocation = kubernetes_allocation(environment, lambda: f"{name}-0.{name}", count)
        assert allocation is not None
        cluster = discovery.allocated_cluster(strategy.process_ids, allocation)
    strategy, _ = strategy.resolve(cluster)
    check(experiment, ResolvedRun(strategy, cluster))
    return count or 1, count > 0


def _check_grace(experiment: Experiment, grace_secs: int) -> None:
    """Refuse a pod that is killed before the run gives up to save.

    Raises:
        ConfigError: it would be.
    """
    needed = experiment.preemption.grace_secs
    if needed is not None and grace_secs <= needed:
        raise ConfigError(
            f"--grace-secs ({grace_secs}) must be longer than preemption.grace_secs ({needed:g})"
        )
