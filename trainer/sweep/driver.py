"""Runs the sweep of a command line: checks it, trains its points in parallel, sums them up."""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias, TypeVar

from hydra.core.override_parser.types import Override

from trainer.cli.compose import parse_sweep
from trainer.cli.overrides import resume_override
from trainer.cli.terminal import Terminal
from trainer.cluster import environment
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.messages import (
    Crash,
    ErrorLine,
    Evaluated,
    Exit,
    Leave,
    Message,
    Problem,
    SignalReceived,
)
from trainer.cluster.signals import STOP, Decision, StopRequests, forward_to
from trainer.cluster.spec import Cluster
from trainer.config import addresses, directions
from trainer.config.directions import biased_selection, selecting_split
from trainer.config.schema import Experiment, Pause, Sweep
from trainer.errors import CRASHED, DONE, ConfigError, DamagedError
from trainer.launch.command_process import CommandProcess
from trainer.launch.display import is_attended
from trainer.launch.run_context import Command, resolve
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.directory import SWEEP_SUMMARY, read_result
from trainer.runs.provenance import code_warning, format_command, read
from trainer.runs.recorded_metrics import read_evaluations
from trainer.runs.status import RunStatus, State, run_status
from trainer.sweep.live_table import LiveTable
from trainer.sweep.points import (
    Compose,
    Point,
    PointResult,
    combinations,
    compose_point,
    expand,
)
from trainer.sweep.search import Search, SearchContext, create_search
from trainer.sweep.study import Study, Trial
from trainer.sweep.summary import (
    lock_folder,
    show_summary,
    sort_results,
    summary_folder,
    write_summary,
)

T = TypeVar("T")

PointMessages: TypeAlias = "queue.SimpleQueue[tuple[int | None, Message]]"
"""Messages with the number of the point that sent them; None: the sweep's own process."""


def run_sweep(overrides: list[str], config_dir: str | None) -> int:
    """Run the sweep of a command line.

    Returns:
        The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

    Raises:
        ConfigError: with all problems of all points; nothing has been written.
    """
    first, search, folder = prepare(overrides, config_dir)
    _, cluster = resolve(first)
    declared = cluster if cluster.is_declared else None
    shares, share_notes = _divide_resources(first, search.total, declared)
    study = Study()
    table = LiveTable(search.total, first.sweep)
    driver = Driver(search, study, first, shares, config_dir, table)

    def run() -> int:
        with _log(study, search, first, folder):
            bias = biased_selection(first, "sweep" if search.points else "search")
            for note in [*search.notes, *bias, *share_notes]:
                table.line(note)
            try:
                return driver.run()
            finally:
                if declared is None or declared.is_chief:
                    print_summary(folder, first.sweep, search.points, driver.results)

    if not addresses.is_remote(first.runs_dir):
        return run()
    return _run_mirrored(run, first, cluster, folder, driver)


def _run_mirrored(
    run: Callable[[], int], first: Experiment, cluster: Cluster, folder: Path, driver: Driver
) -> int:
    """Run a sweep whose folder is in an object store: download it, then mirror it meanwhile."""
    if cluster.is_declared:
        raise ConfigError(
            f"runs_dir ({first.runs_dir}) must be a folder for a sweep (-m) on a declared cluster "
            f"({cluster.source}): each of its processes reads what the points have reached"
        )
    from trainer.launch import remote_run  # a sweep in a folder does not need it

    def run_with_summary() -> int:
        if not (folder / SWEEP_SUMMARY).exists():  # nothing of it is uploaded before
            write_summary(folder, first.sweep, [])
        return run()

    address = addresses.join(first.runs_dir, f"sweeps/{folder.name}")
    table, requests = driver.table, driver.requests
    with forward_to(requests.request):
        remote = remote_run.RemoteRun(first, address, cluster, table, requests, folder)
        return remote.run(run_with_summary)


def _download_missing_records(point: Point) -> None:
    """Download the records of a point in an object store, unless this machine has them."""
    if addresses.is_remote(point.place):
        from trainer.launch import remote_run

        remote_run.download_missing_records(point.experiment)


@contextmanager
def _log(study: Study, search: Search, first: Experiment, folder: Path) -> Iterator[None]:
    """Keep the log of a study that outlives this command.

    Raises:
        ConfigError: it is that of another search, or another command has it.
    """
    if not search.remembers:
        yield
        return
    if first.resume == "never":
        raise ConfigError(
            f"resume (never) would forget what search={first.choices['search']} has decided by; "
            "start another search with sweep.name=<name>"
        )
    with closing(lock_folder(folder)):
        study.open(folder, search.definition)
        try:
            yield
        finally:
            study.close()


def prepare(overrides: list[str], config_dir: str | None) -> tuple[Experiment, Search, Path]:
    """Compose and check the points of a sweep; nothing is written.

    Returns:
        The first point, which has all settings of the sweep, the search, and the folder of the
        summary.

    Raises:
        ConfigError: with all problems of all points.
    """
    compose = partial(compose_point, config_dir=config_dir)
    parsed = parse_sweep(overrides, config_dir)
    first = _compose_first(parsed, compose)
    varied_keys = [item.get_key_element() for item in parsed if item.is_sweep_override()]
    folder = summary_folder(first, varied_keys, overrides)
    return first, create_search(SearchContext(parsed, first, compose, folder)), folder


def _compose_first(parsed: Sequence[Override], compose: Compose) -> Experiment:
    """Return the first point, which has all settings of the sweep, its metric and mode resolved.

    It is without continuous ranges.
    """
    ranges = [item for item in parsed if item.is_sweep_override() and not item.is_discrete_sweep()]
    try:
        _, overrides = next(combinations([item for item in parsed if item not in ranges]))
        first = compose(overrides)
        sweep, problem = directions.resolved(first.sweep, first)
        if problem:
            raise ConfigError(problem)
    except ConfigError:
        if not ranges:
            expand(parsed, compose)
        raise
    return replace(first, sweep=sweep)


def _next_commands(folder: Path, sweep: Sweep, results: Sequence[PointResult]) -> list[str]:
    """Return what one does with a sweep, ready to paste: also the export of the best point."""
    commands = [[sys.argv[0], word, str(folder)] for word in ("ui", "report")]
    done = [result for result in results if result.outcome.state is State.DONE]
    if done:
        best = sort_results(sweep, done)[0].point.place
        commands.append([sys.argv[0], "mode=export", resume_override(best)])
    return [format_command(words) for words in commands]


def _divide_resources(
    first: Experiment, num_points: int, declared: Cluster | None
) -> tuple[list[ResourceShare], list[str]]:
    """Return the resources of each point that trains in parallel, and notes for the user."""
    jobs = min(first.sweep.jobs, num_points)
    if declared and jobs > 1:
        raise ConfigError(
            f"sweep.jobs ({first.sweep.jobs}) must be 1: "
            f"{declared.source} declares a cluster for one point at a time"
        )
    if first.launch.uses_ray:
        return [ResourceShare()] * jobs, []  # Ray divides what its nodes have
    notes = []
    cores = available_cores()
    if cores and jobs > len(cores):
        notes.append(f"{jobs} points at a time share {len(cores)} cores")
    gpus = [] if first.devices.gpus == 0 else environment.visible_gpus()
    return divide(jobs, cores, gpus), notes


def print_summary(
    folder: Path, sweep: Sweep, points: Sequence[Point], results: Mapping[int, PointResult]
) -> None:
    """Write and print the summary of the points that have ended, and of the others of a grid."""
    all_results = dict(results)
    for point in points:
        if point.number not in results:
            _download_missing_records(point)
            status = run_status(point.path, point.experiment)
            all_results[point.number] = PointResult(point, status)
    ended = list(all_results.values())
    write_summary(folder, sweep, ended)
    show_summary(Terminal(), sweep, ended)
    print(f"Summary: {folder}")
    for word, command in zip_longest(["Next:"], _next_commands(folder, sweep, ended), fillvalue=""):
        print(f"{word:5} {command}", flush=True)
    warnings = (code_warning(result.point.path) for result in ended)
    for line in dict.fromkeys(filter(None, warnings)):
        print(f"warning: {line}", flush=True)


@dataclass(frozen=True)
class ResourceShare:
    """The cores and GPUs of one point.

    Attributes:
        threads: number of threads into which TensorFlow divides an operation; None for one a core.
            The result of a sum depends on it to the bit, so it is the number of all cores: the
            numbers of a point do not depend on how many points train in parallel.
    """

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    threads: int | None = None


class PointProcess(CommandProcess):
    """A process that runs one point."""

    def __init__(
        self,
        point: Point,
        pause: Pause,
        share: ResourceShare,
        config_dir: str | None,
        messages: PointMessages,
        server: ForkServer,
    ) -> None:
        self.point = point
        self.share = share
        experiment = replace(point.experiment, pause=pause)
        super().__init__(
            Command(experiment, point.own_overrides, config_dir, server=server),
            environment.point_environment(share.threads, share.gpus),
            lambda message: messages.put((point.number, message)),
            share.cores,
        )


class Driver:
    """Runs points until there are no more, or until it is stopped.

    Args:
        first: has the settings of the whole sweep.
    """

    def __init__(
        self,
        search: Search,
        study: Study,
        first: Experiment,
        shares: Sequence[ResourceShare],
        config_dir: str | None,
        table: LiveTable,
    ) -> None:
        self.results: dict[int, PointResult] = {}
        self.table = table
        self.requests = StopRequests(is_attended=is_attended())
        self._search = search
        self._study = study
        self._settings = first.sweep
        self._repeats = first.resume == "never"
        self._config_dir = config_dir
        self._free_shares = list(shares)
        self._running: dict[int, PointProcess] = {}
        self._to_start_again: deque[Point] = deque()
        self._first_errors: dict[int, str] = {}
        self._asked_to_stop: set[int] = set()
        self._is_stopping = False
        self._is_leaving_at_once = False
        self._used_budget = ""
        self._problem: ConfigError | None = None
        self._messages: PointMessages = queue.SimpleQueue()
        self._server: ForkServer | None = None
        self._began = time.monotonic()

    def run(self) -> int:
        """Run the points.

        Returns:
            The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

        Raises:
            ConfigError: the search cannot continue; the running points have saved.
        """
        try:
            with forward_to(self.requests.request), self.requests.waking(self._take_requests):
                self._take_requests()
                self._resume_points()
                self._start_points()
                while self._running:
                    try:
                        self._handle_message(*self._next_message())
                        self._start_points()
                    except ConfigError as error:
                        self._problem = self._problem or error
                        self._stop_all(signal.SIGTERM)
            if self._problem:
                raise self._problem
            return self._exit_code()
        finally:
            for process in self._running.values():
                process.signal(signal.SIGKILL)  # all of them before the first is waited for
            for process in self._running.values():
                process.kill()
            if self._server:
                self._server.release()
            self.table.close()

    def _take_requests(self) -> None:
        # A signal handler may interrupt any code: only this kind of queue is safe then.
        while taken := self.requests.take():
            self._messages.put((None, taken[0]))

    def _next_message(self) -> tuple[int | None, Message]:
        """Return the next message; stop the points when the time of this command is used up."""
        while not self._is_stopping:
            try:
                return self._messages.get(timeout=self._secs_left())
            except queue.Empty:
                hours = self._settings.max_hours
                self._used_budget = f"sweep.max_hours ({hours:g})"
                self.table.line(f"{self._used_budget} is over: the running points save.")
                self._stop_all(signal.SIGTERM)
        return self._messages.get()

    def _secs_left(self) -> float | None:
        hours = self._settings.max_hours
        return None if hours is None else max(0.0, self._began + 3600 * hours - time.monotonic())

    def _resume_points(self) -> None:
        """Show what has ended in an earlier command, and queue the rest."""
        self._study.retry_failed()
        for trial in self._study.trials.values():
            point = self._point(trial)
            if trial.outcome is None:
                _download_missing_records(point)
                self._search.prepare(self._study, trial)
                self._report_missed(trial, point)
            if trial.outcome is None:
                self._to_start_again.append(point)
            else:
                self._show_end(point, trial.outcome)

    def _point(self, trial: Trial) -> Point:
        point = self._search.point(trial)
        if point is None:
            values = " ".join(f"{key}={value}" for key, value in trial.values.items())
            raise ConfigError(
                f"point {trial.number} ({values}) of this search is not possible any more; "
                "undo what has changed, or start another search with sweep.name=<name>"
            )
        return point

    def _report_missed(self, trial: Trial, point: Point) -> None:
        """Decide by the last report of a killed command, and report what has come after it."""
        for step, metrics in [*list(trial.evaluations.items())[-1:], *read_evaluations(point.path)]:
            if trial.outcome is None:
                self._report(point, step, metrics)

    def _start_points(self) -> None:
        """Start points while there are free resources; what is recorded needs no process."""
        while self._free_shares and not self._is_stopping and (point := self._next_point()):
            trial = self._study.trials[point.number]
            until = trial.stints[-1].until
            if outcome := None if self._repeats else self._recorded(point, until):
                self._end_point(point, outcome)
                continue
            self.table.start_point(point)
            if self._server is None:  # not before the first point that needs it
                self._server = ForkServer.acquire()
            self._running[point.number] = PointProcess(
                point,
                self._pause(until),
                self._free_shares.pop(),
                self._config_dir,
                self._messages,
                self._server,
            )

    def _next_point(self) -> Point | None:
        """Return the next point to train, which the study has recorded; None: none for now."""
        if self._to_start_again:
            return self._to_start_again.popleft()
        most = self._settings.max_steps
        if most is not None and self._study.steps >= most:
            if not self._used_budget:
                self._used_budget = f"sweep.max_steps ({most})"
                self.table.line(f"{self._used_budget} is used up: no further point starts.")
            return None
        proposal = self._search.propose(self._study)
        if proposal is None:
            return None
        self._study.start(proposal)
        trial = self._study.trials[proposal.number]
        self._search.prepare(self._study, trial)
        point = self._point(trial)
        _download_missing_records(point)
        return point

    def _pause(self, until: float | None) -> Pause:
        if until is None:
            return Pause()
        return Pause(at_step=int(until)) if self._search.unit == "steps" else Pause(at_epoch=until)

    def _recorded(self, point: Point, until: float | None) -> RunStatus | None:
        """Return the outcome if the run directory shows that there is nothing left to train."""
        if until is not None and (paused := self._paused(point, until)):
            return paused
        if read_result(point.path, point.experiment):
            return run_status(point.path, point.experiment)
        return None

    def _paused(self, point: Point, until: float) -> RunStatus | None:
        """Return the outcome of a point that has used its budget: at its first evaluation then."""
        if self._search.unit == "epochs":
            until *= _recorded_number(point, "steps_per_epoch")
        saved = max(committed_steps(point.path / "checkpoints"), default=0)
        for step, metrics in read_evaluations(point.path):
            if round(until, 6) <= step <= saved:
                split = selecting_split(point.experiment)
                return RunStatus(State.PAUSED, step, metrics, split=split)
        return None

    def _handle_message(self, number: int | None, message: Message) -> None:
        if number is None:
            if isinstance(message, SignalReceived):
                self._handle_request(message)
            return
        process = self._running[number]
        point = process.point
        match message:
            case Exit(code, output):
                del self._running[number]
                self._free_shares.append(process.share)
                if process.has_lost_server and number not in self._asked_to_stop:
                    self._to_start_again.append(point)
                    return
                outcome = self._outcome_of_exit(point, code, output)
                self._end_point(point, outcome)
                if outcome.state is State.FAILED and self._settings.on_error == "stop":
                    self._stop_all(signal.SIGTERM)
                return
            case Evaluated(step, metrics):
                if self._report(point, step, metrics):
                    self._stop_point(process, signal.SIGTERM)
            case _ if error := error_in(message):
                self._first_errors.setdefault(number, error)
        self.table.show_message(point, message)

    def _report(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation of a point; return whether it is pruned, which is recorded too."""
        trial = self._study.trials[point.number]
        is_new = self._study.report(point.number, step, metrics)
        if not is_new and (trial.outcome or step < max(trial.evaluations)):
            return False
        # At its last step it is done anyway.
        is_last = step >= _recorded_number(point, "total_steps")
        if is_last or not self._search.prunes(self._study, trial):
            return False
        split = selecting_split(point.experiment)
        self._study.end(point.number, RunStatus(State.PRUNED, step, metrics, split=split))
        return True

    def _handle_request(self, request: SignalReceived) -> None:
        """Handle a request: save, save and exit or, the second time, exit immediately."""
        name = signal.Signals(request.number).name
        match self.requests.decide(request):
            case Decision.SAVE:
                for process in self._running.values():
                    process.send(request)
            case Decision.LEAVE:
                self._is_leaving_at_once = True
                self.table.line(f"A second {name}: exiting immediately.")
                for process in self._running.values():
                    process.send(Leave())
            case Decision.STOP:
                self.table.line(
                    f"{name}: the running points save, then exit{self.requests.hint()}."
                )
                self._stop_all(request.number)

    def _stop_all(self, number: int) -> None:
        self._is_stopping = True
        for process in self._running.values():
            self._stop_point(process, number)

    def _stop_point(self, process: PointProcess, number: int) -> None:
        if process.point.number not in self._asked_to_stop:
            self._asked_to_stop.add(process.point.number)
            process.send(SignalReceived(number))

    def _outcome_of_exit(self, point: Point, code: int, output: str) -> RunStatus:
        trial = self._study.trials[point.number]
        if trial.outcome is not None:
            return trial.outcome  # it was pruned, and may have trained on for some steps
        if recorded := self._recorded(point, trial.stints[-1].until):
            return recorded
        outcome = run_status(point.path, point.experiment)
        if code == DONE and trial.stints[-1].until is None:
            return replace(outcome, state=State.DONE)  # its process does not write the result
        if code == DONE:
            error = "it has paused, but metrics.jsonl has no evaluation at its budget"
            return replace(outcome, state=State.FAILED, error=error)
        was_stopped = point.number in self._asked_to_stop and -code in STOP
        if code > 128 or self._is_leaving_at_once or was_stopped:
            return replace(outcome, state=State.STOPPED)
        if outcome.state is State.FAILED:
            return outcome
        cause = self._first_errors.get(point.number)
        if not cause and code < 0:
            cause = f"was killed by {signal.Signals(-code).name}"
        cause = cause or output.rpartition("\n")[2] or f"its process failed with exit code {code}"
        return replace(outcome, state=State.FAILED, error=cause)

    def _end_point(self, point: Point, outcome: RunStatus) -> None:
        """Record and show how a point has ended; a stopped one is trained by the next command."""
        if outcome.state is not State.STOPPED:
            self._study.end(point.number, outcome)
        self._show_end(point, outcome)

    def _show_end(self, point: Point, outcome: RunStatus) -> None:
        self.results[point.number] = PointResult(point, outcome)
        self.table.end_point(point, outcome)

    def _exit_code(self) -> int:
        states = [result.outcome.state for result in self.results.values()]
        if State.FAILED in states or self._is_leaving_at_once:
            return CRASHED  # 130 and 143 would promise that every point has saved
        if self._used_budget and not self.requests.number:
            return DONE
        is_incomplete = self._is_stopping and len(states) < self._search.total
        if State.STOPPED in states or is_incomplete:
            number = self.requests.number
            return 128 + number if number else CRASHED
        return DONE


def _recorded_number(point: Point, key: str) -> float:
    """Return a number that a run has recorded about its training; inf if it has not."""
    try:
        number = read(point.path).get(key)
    except DamagedError:  # its own command writes it again
        number = None
    return math.inf if number is None else float(number)


def available_cores() -> list[int]:
    """Return the cores that this process may use; empty where the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def divide(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[ResourceShare]:
    """Return the fraction of each of `jobs` points that train in parallel.

    Points share cores if there are more points than cores. They cannot share GPUs, because
    TensorFlow takes the whole memory of one.

    Raises:
        ConfigError: there are GPUs, but fewer than points.
    """
    if jobs == 1:
        return [ResourceShare()]
    if gpus and jobs > len(gpus):
        raise ConfigError(
            f"sweep.jobs ({jobs}) must be at most the number of GPUs ({len(gpus)}), because a "
            "point takes the whole memory of a GPU; devices.gpus=0 trains on the CPU"
        )
    return [
        ResourceShare(
            cores=_part(cores, index, jobs),
            gpus=_part(gpus, index, jobs) if gpus else None,
            threads=len(cores) or None,
        )
        for index in range(jobs)
    ]


def _part(items: Sequence[T], index: int, num_parts: int) -> tuple[T, ...]:
    """Return one of `num_parts` parts of about equal size; if there are too few items, one item."""
    if len(items) < num_parts:
        return (items[index % len(items)],) if items else ()
    start = index * len(items) // num_parts
    end = (index + 1) * len(items) // num_parts
    return tuple(items[start:end])


def error_in(message: Message) -> str:
    """Return the error in a message, in one line, or an empty text."""
    match message:
        case Problem(lines):
            return "; ".join(lines)
        case ErrorLine(text) | Crash(cause=text):
            return text
        case _:
            return ""
