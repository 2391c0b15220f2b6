"""From a checked experiment to an exit code: the parent's side of a run. No TensorFlow, unless `launch=inline`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from trainer import batching, build, cluster, crash, faults, isolation, outcome, predictions, provenance, refusals, selection
from trainer.cluster import Cluster, Task
from trainer.console import Console
from trainer.crash import Failure
from trainer.errors import ConfigError, StorageError
from trainer.exitcodes import CRASHED, DONE, WRONG_INPUT
from trainer.files import clear_temporaries
from trainer.group import left_without_saving
from trainer.isolation import IsolationError, Namespace
from trainer.ledger import CATEGORIES, Ledger, process_start
from trainer.overrides import resume_override
from trainer.process import WorkerProcess, log_of
from trainer.rundir import RunDirectory, join_run, open_run
from trainer.schema import Experiment
from trainer.signals import STOP, Signals
from trainer.strategies.base import Strategy
from trainer.supervisor import Supervisor
from trainer.tables import duration, overall

Network: TypeAlias = tuple[Namespace | None, str | None]
"""A network of its own for the processes that are started here, or why it has none."""


def run(
    experiment: Experiment,
    overrides: list[str],
    config_dir: str | None = None,
    spare: WorkerProcess | None = None,
    console: Console | None = None,
    asked: deque[int] | None = None,
) -> int:
    """Runs an experiment to its end, or continues it.

    Args:
        experiment: the checked configuration.
        overrides: the command line's, for the record and for `resume=`.
        config_dir: the user's own folder of choices, likewise.
        spare: a worker process that has been started already.
        console: shows messages; None: to the user of this process.
        asked: the signals that this process was asked to send itself, see `Supervisor`.

    Returns:
        The exit code: 0 done, 1 crashed, 2 wrong input, 130 or 143 stopped after saving.

    Raises:
        ConfigError: the configuration cannot work; nothing has been written.
    """
    began = process_start() if spare else time.time()  # what has a worker already is the only run of this process
    strategy, declared = resolve(experiment)
    if experiment.mode == "predict":
        predictions.check(experiment)
    if strategy.hosts:
        return _show_commands(strategy, strategy.hosts)
    with _network(experiment, strategy, declared) as network:
        return _in_directory(
            experiment,
            overrides,
            config_dir,
            spare,
            console or Console(),
            asked,
            strategy,
            declared,
            network,
            began,
        )


def resolve(experiment: Experiment) -> tuple[Strategy, Cluster | None]:
    """Finds the strategy of an experiment and the cluster that was declared for it, if any, and checks that it is possible with them.

    Raises:
        ConfigError: the configuration cannot work here.
    """
    strategy = build.strategy_of(experiment)
    declared = cluster.declared(strategy.tasks) if strategy.joins else None
    place = declared or Cluster()
    strategy, _ = strategy.resolve(place)
    if strategy.hosts:
        return strategy, declared
    strategy.check(place)
    refusals.check(experiment, strategy, place)
    if place.task.job == "evaluator":
        if experiment.mode != "train" or not experiment.evaluate.sidecar:
            raise ConfigError(
                f"{place.source}: {place.task} needs mode=train and evaluate.sidecar=true in the command of every process; "
                f"here they are {experiment.mode} and {str(experiment.evaluate.sidecar).lower()}"
            )
        declared = Cluster(place.task, source=place.source)  # it reads checkpoints, and joins nobody
    tasks = declared.tasks if declared else strategy.tasks(None) or [Cluster().task]
    if experiment.evaluate.sidecar:
        tasks = [*tasks, Task("evaluator", 0)]
    faults.check(experiment, tasks, strategy.servers | {"evaluator"}, declared=declared is not None)
    num_replicas = strategy.num_replicas()
    if num_replicas is not None:
        batching.resolve(experiment.batch, num_replicas)
    return strategy, declared


def _in_directory(
    experiment: Experiment,
    overrides: list[str],
    config_dir: str | None,
    spare: WorkerProcess | None,
    console: Console,
    asked: deque[int] | None,
    strategy: Strategy,
    declared: Cluster | None,
    network: Network,
    began: float,
) -> int:
    """Runs an experiment that is known to be possible, in its run directory."""
    place = declared or Cluster()
    directory = open_run(experiment, overrides, config_dir) if place.is_chief else join_run(experiment)
    try:
        # Who evaluates may still have the last checkpoint to do when the training is done; and what the chief has not yet moved
        # aside is an earlier run.
        may_be_done = place.is_chief or (place.task.job != "evaluator" and experiment.resume != "never")
        finished, where = _result(experiment, directory) if may_be_done else (None, f"Run directory: {directory.path}")
        if finished:
            console.line(f"Already finished: {finished}")
            console.line(where)
            return DONE
        num_replicas = strategy.num_replicas()
        if experiment.mode == "train" and num_replicas is not None:
            batching.require_same_global(experiment.batch, provenance.num_replicas(directory.path), num_replicas)
        if experiment.mode == "train" and place.is_chief and not directory.is_new:
            for line in directory.record_continue(overrides, config_dir):
                console.line(line)
        trains_here = place.is_chief and experiment.mode == "train"
        ledger = Ledger(directory.path, writes=trains_here)
        ledger.enter("begin", at=began)
        if trains_here:
            outcome.forget_failure(directory.path)
            crash.forget(directory.path)
        code, failures = _train(experiment, strategy, declared, network, directory, console, asked, spare, ledger)
        if trains_here and code == CRASHED:
            _record_crash(directory, console, failures)
        ledger.enter("exit")
        console.close()
        if code == WRONG_INPUT and place.is_chief:
            directory.discard()
        elif code == DONE and experiment.mode == "train" and (result := directory.result(experiment)):
            console.line(f"Done: {_summary(result)}")
            console.line(f"Time: {_times(result)}")
        if code in (WRONG_INPUT, CRASHED):
            directory.withdraw()
        else:
            console.line(where if code == DONE else f"Run directory: {directory.path}")
        return code
    finally:
        console.close()
        directory.release()


def _result(experiment: Experiment, directory: RunDirectory) -> tuple[str | None, str]:
    """Gives what there is if nothing is left to do, and the line that says where it is, or will be.

    Raises:
        ConfigError: a checkpoint is needed and there is none such, or there is something else where the result would be.
    """
    where = f"Run directory: {directory.path}"
    if experiment.mode == "train":
        result = directory.result(experiment)
        return (_summary(result) if result else None), where
    step = selection.step_of(directory.path, experiment.checkpoint)
    if experiment.mode != "predict":
        return None, where
    table = predictions.table_of(experiment, directory.path, step)
    where = f"Predictions with step {step} of {directory.path}: {table.path}"
    if not table.is_finished():
        return None, where
    table.rows.unlink(missing_ok=True)  # a kill may have come first
    return f"{table.recorded()['rows']} rows are predicted", where


def _train(
    experiment: Experiment,
    strategy: Strategy,
    declared: Cluster | None,
    network: Network,
    directory: RunDirectory,
    console: Console,
    asked: deque[int] | None,
    spare: WorkerProcess | None,
    ledger: Ledger,
) -> tuple[int, list[Failure]]:
    """Trains, or does what else `mode` says; gives the exit code, and how each attempt failed that did."""
    if experiment.launch.inline:
        return _train_here(experiment, declared or Cluster(), directory, console)
    namespace, why_open = network
    if namespace and spare:
        spare.discard()  # it was started outside
    spares = [spare] if spare and not namespace else []
    evaluators = _evaluators(experiment, declared)

    def members() -> list[Cluster]:
        if declared is None or declared.is_chief:
            clear_temporaries(directory.path)  # between two attempts nobody writes
        # Anew for each attempt: the ports of a process that was killed may not be free at once.
        found = [declared] if declared else cluster.local(strategy.tasks(None)) or [Cluster()]
        if why_open:
            addresses = [address for addresses in found[0].jobs.values() for address in addresses]
            console.line(f"warning: {isolation.open_ports_warning(addresses, why_open)}")
        return [*found, *evaluators]

    def start() -> WorkerProcess:
        if namespace:
            return WorkerProcess(namespace.command)
        return spares.pop() if spares else WorkerProcess()

    supervisor = Supervisor(directory, experiment, strategy, members, console, start, ledger, asked)
    return supervisor.supervise(), supervisor.failures


def _evaluators(experiment: Experiment, declared: Cluster | None) -> list[Cluster]:
    """Gives the process that evaluates beside the training, if that is started here: TF_CONFIG names one of its own, if any."""
    if not experiment.evaluate.sidecar or experiment.mode != "train":
        return []
    here = declared is None or (declared.is_chief and declared.source != "TF_CONFIG")
    return [Cluster(Task("evaluator", 0))] if here else []


@contextmanager
def _network(experiment: Experiment, strategy: Strategy, declared: Cluster | None) -> Iterator[Network]:
    """Gives a cluster that is started here a network of its own, or why it has none."""
    if declared or not strategy.tasks(None):
        yield None, None
        return
    isolate = strategy.isolate
    needs = None
    if isolate is not True:
        needs = isolation.needs_network(asdict(experiment)) or cluster.online_tracker(experiment.summary.writers)
    if isolate is False or needs:
        yield None, needs or "strategy.isolate is false"
        return
    try:
        namespace = Namespace.create()
    except IsolationError as error:
        if isolate is True:
            raise ConfigError(f"strategy.isolate (true) cannot be had here: {error}; use auto or false") from error
        yield None, str(error)
        return
    with namespace:
        yield namespace, None


def _show_commands(strategy: Strategy, hosts: list[str]) -> int:
    """Prints what to type on each host."""
    argv = [Path(sys.executable).name if sys.argv[0].endswith(".py") else "", *sys.argv]
    for address, line in cluster.commands(hosts, strategy.tasks(len(hosts)), [word for word in argv if word]):
        print(f"# {address}\n{line}")
    return DONE


def _train_here(experiment: Experiment, place: Cluster, directory: RunDirectory, console: Console) -> tuple[int, list[Failure]]:
    """Trains in this very process, so that a debugger's breakpoints are hit."""
    from trainer import worker
    from trainer.channel import Channel

    log = log_of(directory, place.task)
    failures: list[Failure] = []
    asked: list[int] = []
    console.begin(place.task)

    def show(message: dict[str, Any]) -> None:
        if message["kind"] == "crash":
            failures.append(Failure(str(place.task), "failed", log, message["cause"], message["text"]))
        elif message["kind"] in ("phase", "progress"):
            console.heard(place.task, message)
        console.show(message, log)

    def leave() -> None:
        console.error(left_without_saving(directory))
        os._exit(CRASHED)

    def asked_for(number: int) -> None:
        if number not in STOP:
            return
        if asked:
            leave()
        asked.append(number)
        if grace := experiment.preemption.grace_secs:
            timer = threading.Timer(grace, leave)
            timer.daemon = True
            timer.start()

    return worker.run(experiment, directory.path, Channel(show), place, Signals(asked_for), time.time()), failures


def _record_crash(directory: RunDirectory, console: Console, failures: list[Failure]) -> None:
    """Leaves in the run directory what is known of a crash; where that cannot be, one warning is all that comes of it."""
    # What it changed and did not save is taken back: then the same command alone goes on with it.
    command = sys.argv if directory.changes else [sys.argv[0], resume_override(directory.path)]
    try:
        outcome.record_failure(directory.path, console.cause)
        crash.write(directory.path, console.cause, failures, command)
    except StorageError as error:
        console.line(f"warning: {error}")
    else:
        console.error(f"what is known of it, and how to go on: {crash.path_in(directory.path)}")


def _summary(result: dict[str, Any]) -> str:
    metrics = ", ".join(f"test {name} {value:.4f}" for name, value in overall(result["metrics"]).items())
    attempts = f" in {result['attempts']} attempts" if result["attempts"] > 1 else ""
    return f"step {result['step']}, {metrics}, {duration(result['wall_secs'])}{attempts}, goodput {100 * result['goodput']:.0f} %"


def _times(result: dict[str, Any]) -> str:
    """Words where the time went, the most first: `93 % steps, 4 % start, 2 % compile`."""
    percent = {CATEGORIES[name]: 100 * secs / result["wall_secs"] for name, secs in result["time"].items()}
    return ", ".join(f"{share:.0f} % {name}" for name, share in sorted(percent.items(), key=lambda item: -item[1]) if share >= 0.5)
