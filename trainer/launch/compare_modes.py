"""The command `compare-modes`: trains one experiment synchronously and asynchronously.

Four runs, one after the other: multi_worker and parameter_server, with even workers and with one
that is slowed down. Each has its own directory, named by its configuration: so the same command
goes on where it was interrupted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.cli.commands.arguments import Parser
from trainer.cli.compose import compose
from trainer.cli.overrides import override_key
from trainer.cli.report import data, page
from trainer.cli.report.mode_comparison import Comparison, ModeRun
from trainer.config.schema import Experiment, Fault
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.files import write_atomically
from trainer.launch.fork_server import ForkServer
from trainer.launch.resolved_run import Command, resolve, select_run
from trainer.launch.verify import run_command
from trainer.runs import identity

_PAGE = "report.html"
_JSON = "comparison.json"
_JSON_LINES = {"jsonl": {"_target_": "trainer.summaries.writers.jsonl.JsonLines"}}
"""The writer of metrics.jsonl, which is compared."""


@dataclass(frozen=True)
class Mode:
    """One of the runs.

    Attributes:
        name: its name, the beginning of that of its directory.
        strategy: the choice of its strategy.
        is_asynchronous: whether its workers do not wait for one another.
        is_slow: whether one worker is slowed down.
    """

    name: str
    strategy: str
    is_asynchronous: bool
    is_slow: bool


MODES = (
    Mode("sync", "multi_worker", is_asynchronous=False, is_slow=False),
    Mode("async", "parameter_server", is_asynchronous=True, is_slow=False),
    Mode("sync-slow", "multi_worker", is_asynchronous=False, is_slow=True),
    Mode("async-slow", "parameter_server", is_asynchronous=True, is_slow=True),
)


def run(arguments: Sequence[str]) -> int:
    """Train an experiment in all modes, print the table, and write the page and the JSON file.

    Returns:
        The exit code: 0 all have finished, else that of the first that has not.

    Raises:
        ConfigError: the experiment cannot be trained in a mode.
    """
    parser = Parser("compare-modes", "exit code: 0 if all runs have finished")
    parser.add_argument("overrides", nargs="*", help="the experiment, as for training")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="2 unless it is given")
    parser.add_argument(
        "--delay",
        type=float,
        default=0.05,
        metavar="SECS",
        help="how long the slow worker rests in each of its steps; 0.05 unless it is given",
    )
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a directory with own choices")
    args = parser.parse_intermixed_args(arguments)
    if args.workers < 2:
        raise ConfigError(f"--workers ({args.workers}) must be >= 2: one has nobody to wait for")
    if not args.delay > 0:
        raise ConfigError(f"--delay ({args.delay:g}) must be > 0")
    _check_overrides(args.overrides)
    plan = _Plan(args.overrides, args.config_dir, args.workers, args.delay)
    experiments = {mode: plan.experiment(mode) for mode in MODES}
    return _train(plan, experiments)


def _check_overrides(overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override_key(override)
        if key.partition(".")[0] in ("strategy", "mode"):
            raise ConfigError(
                f"{override} cannot be used with compare-modes, which trains with both strategies; "
                "leave it out, and give the number of workers as --workers"
            )


@dataclass(frozen=True)
class _Plan:
    """What is to be compared.

    Attributes:
        overrides: of the experiment.
        config_dir: the user's own folder of choices.
        workers: number of workers.
        delay_secs: how long the slow one rests in each step.
    """

    overrides: list[str]
    config_dir: str | None
    workers: int
    delay_secs: float

    @property
    def slow_worker(self) -> str:
        return f"worker-{self.workers - 1}"

    def command(self, mode: Mode) -> list[str]:
        """Return the overrides with which a mode could be trained alone."""
        strategy = [f"strategy={mode.strategy}", f"strategy.workers={self.workers}"]
        return [*self.overrides, *strategy]

    def experiment(self, mode: Mode) -> Experiment:
        """Compose the experiment of a mode, and check that it can be trained.

        Raises:
            ConfigError: it cannot.
        """
        composed = compose(self.command(mode), self.config_dir)
        experiment = copy.deepcopy(composed)
        folder = f"{identity.run_name(compose(self.overrides, self.config_dir))}-modes"
        experiment.runs_dir = str(Path(composed.runs_dir).expanduser() / folder)
        experiment.name = mode.name
        experiment.resume = "auto"
        experiment.resume_allow = []
        experiment.launch.inline = False
        experiment.writers = {**_JSON_LINES, **experiment.writers}
        if mode.is_slow:
            slow = Fault("slow", self.slow_worker, "step", 1, self.delay_secs)
            experiment.fault = {**experiment.fault, "slow_worker": slow}
        _check(experiment)
        return experiment


def _check(experiment: Experiment) -> None:
    if declared := select_run(experiment).declared:
        raise ConfigError(
            f"compare-modes starts its own processes, and {declared.source} declares a cluster; "
            "compare without it"
        )
    if experiment.batch.global_size is None:
        raise ConfigError(
            f"batch.per_replica ({experiment.batch.per_replica}) cannot be used with "
            "compare-modes: a step would have another number of samples in each mode; "
            "use batch.global_size"
        )
    resolve(experiment)


def _train(plan: _Plan, experiments: dict[Mode, Experiment]) -> int:
    """Train what is not finished, and compare; return the exit code."""
    first = experiments[MODES[0]]
    server = ForkServer.acquire()
    try:
        for mode, experiment in experiments.items():
            print(f"--- {mode.name}: {_words(mode, plan)}", flush=True)
            command = Command(experiment, plan.command(mode), plan.config_dir)
            code = run_command(command, experiment, str(server.directory))
            if code != DONE:
                return code if code > 0 else CRASHED
    finally:
        server.release()
    comparison = Comparison(list(_runs(experiments)), f"{plan.slow_worker} slowed down")
    print("---", *comparison.table(), "", *comparison.conclusions(), sep="\n", flush=True)
    directory = Path(first.runs_dir)
    runs = [item.run for item in comparison.runs]
    title = f"{directory.name}: synchronous against asynchronous"
    write_atomically(directory / _JSON, json.dumps(comparison.content(), indent=1))
    write_atomically(directory / _PAGE, page.render(runs, title, comparison.sections()))
    print(f"Report: {directory / _PAGE}", flush=True)
    return DONE


def _words(mode: Mode, plan: _Plan) -> str:
    even = f"{mode.strategy}, {plan.workers} workers"
    rest = f"{plan.slow_worker} rests {plan.delay_secs:g} s in each of its steps"
    return f"{even}, {rest}" if mode.is_slow else even


def _runs(experiments: dict[Mode, Experiment]) -> Iterator[ModeRun]:
    for mode, experiment in experiments.items():
        directory = Path(experiment.runs_dir) / identity.run_name(experiment)
        global_size = experiment.batch.global_size
        assert global_size is not None  # checked
        yield ModeRun(
            data.read(directory, mode.name),
            mode.is_asynchronous,
            mode.is_slow,
            global_size,
        )
