"""From a checked experiment to an exit code: the parent's side of a run. No TensorFlow, unless `launch=inline`."""

from __future__ import annotations

import time
from typing import Any

from trainer import batching, build, cluster
from trainer.cluster import Cluster
from trainer.config import Experiment
from trainer.console import Console, duration
from trainer.exitcodes import CRASHED, DONE, WRONG_INPUT
from trainer.process import WorkerProcess, log_of
from trainer.rundir import RunDirectory, join_run, open_run
from trainer.strategies.base import Strategy
from trainer.supervisor import Supervisor


def run(experiment: Experiment, overrides: list[str], config_dir: str | None = None, spare: WorkerProcess | None = None) -> int:
    """Runs an experiment to its end, or continues it.

    Args:
        experiment: the checked configuration.
        overrides: the command line's, for the record and for `resume=`.
        config_dir: the user's own folder of choices, likewise.
        spare: a worker process that has been started already.

    Returns:
        The exit code: 0 done, 1 crashed, 2 wrong input, 130 or 143 stopped after saving.

    Raises:
        ConfigError: the configuration cannot work; nothing has been written.
    """
    strategy = build.strategy_of(experiment)
    declared = cluster.declared(strategy.tasks) if strategy.joins else None
    place = declared or Cluster()
    strategy, _ = strategy.resolve(place)
    strategy.check(place)
    num_replicas = strategy.num_replicas()
    if num_replicas is not None:
        batching.resolve(experiment.batch, num_replicas)
    console = Console()
    directory = open_run(experiment, overrides, config_dir) if place.is_chief else join_run(experiment)
    try:
        if experiment.mode == "train" and (result := directory.result(experiment)):
            console.line(f"Already finished: {_summary(result)}")
            console.line(f"Run directory: {directory.path}")
            return DONE
        code = _train(experiment, strategy, declared, directory, console, spare)
        console.close()
        if code == WRONG_INPUT and place.is_chief:
            directory.discard()
        elif code == DONE and experiment.mode == "train" and (result := directory.result(experiment)):
            console.line(f"Done: {_summary(result)}")
        if code not in (WRONG_INPUT, CRASHED):
            console.line(f"Run directory: {directory.path}")
        return code
    finally:
        console.close()
        directory.release()


def _train(
    experiment: Experiment,
    strategy: Strategy,
    declared: Cluster | None,
    directory: RunDirectory,
    console: Console,
    spare: WorkerProcess | None,
) -> int:
    if experiment.launch.inline:
        return _train_here(experiment, declared or Cluster(), directory, console)
    spares = [] if spare is None else [spare]

    def members() -> list[Cluster]:
        # Anew for each attempt: the ports of a process that was killed may not be free at once.
        return [declared] if declared else cluster.local(strategy.tasks(None)) or [Cluster()]

    def start() -> WorkerProcess:
        return spares.pop() if spares else WorkerProcess()

    return Supervisor(directory, experiment, strategy, members, console, start).supervise()


def _train_here(experiment: Experiment, place: Cluster, directory: RunDirectory, console: Console) -> int:
    """Trains in this very process, so that a debugger's breakpoints are hit."""
    from trainer import worker
    from trainer.channel import Channel

    log = log_of(directory, place.task)
    channel = Channel(lambda message: console.show(message, log))
    return worker.run(experiment, directory.path, channel, place, worker.StopRequest(), time.time())


def _summary(result: dict[str, Any]) -> str:
    metrics = ", ".join(f"test {name} {value:.4f}" for name, value in result["metrics"].items())
    attempts = f" in {result['attempts']} attempts" if result["attempts"] > 1 else ""
    return f"step {result['step']}, {metrics}, {duration(result['wall_secs'])}{attempts}"
