"""Refuses faults that could never happen. No TensorFlow."""

from __future__ import annotations

from collections.abc import Collection

from trainer.cluster.fault_injection import SIGNALS, knows_when
from trainer.cluster.spec import ProcessId
from trainer.config.options.constraints import did_you_mean
from trainer.config.schema import Experiment, Fault
from trainer.errors import ConfigError


def check(
    experiment: Experiment,
    process_ids: Collection[ProcessId],
    service_jobs: Collection[str],
    *,
    declared: bool,
    elastic: bool,
) -> None:
    """Refuse faults that could never happen: a rehearsal must not pass for want of its fault.

    Args:
        experiment: the checked configuration.
        process_ids: all processes of the run.
        service_jobs: the jobs whose processes count no steps.
        declared: whether each process has a supervisor of its own.
        elastic: whether the run may go on with fewer workers.

    Raises:
        ConfigError: with a line for each.
    """
    if not experiment.trains:
        return
    supervisor = [] if experiment.launch.inline else ["supervisor"]
    processes = ["chief", *supervisor, *map(str, process_ids)]
    problems = []
    for name, fault in experiment.fault.items():
        key = f"fault.{name}.process ({fault.process})"
        if fault.process not in processes:
            choices = ", ".join(dict.fromkeys(processes))
            hint = did_you_mean(fault.process, processes)
            problems.append(f"{key} is no process of this run; choose one of {choices}{hint}")
        elif fault.action in ("lose", "return"):
            problems += _problems_of_loss(name, fault, elastic=elastic)
        elif fault.action == "slow" and fault.phase == "step":
            if problem := _problem_of_slowness(fault, service_jobs):
                problems.append(f"{key} {problem}")
        elif fault.process == "supervisor" or not knows_when(fault, service_jobs):
            if fault.action not in SIGNALS:
                problems.append(
                    f"{key} {_why_only_signals(fault)}; there fault.{name}.action "
                    f"({fault.action}) must be one of {', '.join(SIGNALS)}"
                )
            elif declared and fault.process != "supervisor":
                problems.append(
                    f"{key} is out of the chief's reach in a declared cluster; "
                    "rehearse it in one that is started here"
                )
    if problems:
        raise ConfigError(*problems)


def _problems_of_loss(name: str, fault: Fault, *, elastic: bool) -> list[str]:
    """Return why a worker cannot be lost in this way, or return."""
    if not elastic or fault.phase != "step":
        return [
            f"fault.{name}.action ({fault.action}) is for a step of a local cluster that may go on "
            f"without {fault.process}; add strategy=multi_worker and strategy.min_workers"
        ]
    if not fault.process.startswith("worker-") or fault.delay_secs:
        return [
            f"fault.{name}.process ({fault.process}) with action {fault.action} must be a worker "
            "such as worker-1, and without delay_secs"
        ]
    return []


def _problem_of_slowness(fault: Fault, service_jobs: Collection[str]) -> str | None:
    """Return why a process cannot rest in its steps; None: it can."""
    is_handed_out = "worker" in service_jobs
    if fault.process.startswith("worker-") or (fault.process == "chief" and not is_handed_out):
        return None
    why = "hands out steps" if fault.process.startswith("chief") else "runs no steps"
    return f"{why}, so it cannot be slow in them; choose a worker such as worker-0"


def _why_only_signals(fault: Fault) -> str:
    """Return why a process cannot inject a fault into itself."""
    if fault.process.startswith("worker-"):
        return "runs steps that the chief hands out, in no training loop of its own"
    return "runs no steps"
