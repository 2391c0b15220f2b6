"""Runs the points of a sweep, some at a time, each in a process of its own. No TensorFlow."""

from __future__ import annotations

import queue
import signal
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.override_parser.types import Override

from trainer import cluster, launch
from trainer.cluster import Cluster
from trainer.composition import Composer
from trainer.errors import ConfigError
from trainer.exitcodes import CRASHED, DONE, WRONG_INPUT
from trainer.outcome import Outcome, State, outcome_of
from trainer.rundir import result_of
from trainer.schema import Experiment, Sweep
from trainer.signals import SAVE, STOP, handled
from trainer.sweep import grid, launchers, search, slots, summary
from trainer.sweep.launchers import Launched
from trainer.sweep.points import Point, Proposals
from trainer.sweep.process import PointProcess
from trainer.sweep.slots import Slot
from trainer.sweep.table import Table


def run(overrides: list[str], config_dir: str | None) -> int:
    """Runs the sweep of a command line.

    Args:
        overrides: as they are after `trainer.overrides.rewrite`.
        config_dir: a directory with more choices.

    Returns:
        The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

    Raises:
        ConfigError: with all problems of all points; nothing has been written.
    """
    settings, overrides = launchers.split(overrides)
    composer = Composer(config_dir)
    parsed = composer.parse(overrides)
    first = _first(parsed, composer)
    strategy, declared = launch.resolve(first)
    if settings:
        launchers.check(settings, first, config_dir, declared)
    if strategy.hosts:
        return launch.run(first, overrides, config_dir)  # it shows the commands
    folder = summary.folder_of(first, [item.get_key_element() for item in parsed if item.is_sweep_override()], overrides)
    is_grid = first.search.method == "grid"
    points, lines = grid.expand(parsed, composer) if is_grid else ([], [])
    parts = _slots(first, len(points) if is_grid else first.search.trials, declared, lines)
    proposals: Proposals = grid.Grid(points)
    if not is_grid:
        # Last: from here on there is a study.
        proposals = search.propose(parsed, first, lambda item: grid.compose_point(item, composer), folder)
    table = Table(proposals.total, first.sweep)
    driver: Driver | Launched = (
        Launched(points, settings, config_dir, folder) if settings else Driver(proposals, first.sweep, parts, config_dir, table)
    )
    for line in lines:
        table.line(line)
    try:
        return driver.run()
    finally:
        if declared is None or declared.is_chief:
            rows = {point.number: (point, outcome_of(point.path, point.experiment)) for point in points} | driver.outcomes
            print(f"{summary.write(folder, first.sweep, list(rows.values()))}Summary: {folder}", flush=True)


def _slots(first: Experiment, num_points: int, declared: Cluster | None, lines: list[str]) -> list[Slot]:
    """Gives what each of the points that train at a time may use; adds what the user should know of it to `lines`."""
    jobs, cores = min(first.sweep.jobs, num_points), slots.cores()
    if declared and jobs > 1:
        raise ConfigError(f"sweep.jobs ({first.sweep.jobs}) must be 1: {declared.source} declares a cluster for one point at a time")
    if cores and jobs > len(cores):
        lines.append(f"{jobs} points at a time share {len(cores)} cores")
    return slots.divide(jobs, cores, cluster.gpus())


def _first(parsed: Sequence[Override], composer: Composer) -> Experiment:
    """Composes the first point, for what holds for all; if it is wrong, the mistakes of the others are told with it."""
    try:
        return grid.first(parsed, composer)
    except ConfigError:
        if all(item.is_discrete_sweep() for item in parsed if item.is_sweep_override()):
            grid.expand(parsed, composer)
        raise


class Driver:
    """Runs points until there are no more, or until it is stopped.

    Args:
        proposals: gives the points.
        settings: what to do after a failure.
        slots: what each of the points that train at a time may use.
        config_dir: the user's own folder of choices, for the record of each run.
        view: shows how it goes.
    """

    def __init__(self, proposals: Proposals, settings: Sweep, slots: list[Slot], config_dir: str | None, view: Table) -> None:
        self._proposals, self._settings, self._config_dir, self._view = proposals, settings, config_dir, view
        self._free = list(slots)
        self._again: deque[Point] = deque()
        self._running: dict[int, PointProcess] = {}
        self._told: dict[int, str] = {}
        self._failures: Counter[int] = Counter()
        self._asked: set[int] = set()
        self._pruned: dict[int, Outcome] = {}
        self._signalled, self._stopping, self._at_once = 0, False, False
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.outcomes: dict[int, tuple[Point, Outcome]] = {}

    def run(self) -> int:
        """Runs the points.

        Returns:
            The exit code for the user.
        """
        try:
            with handled(self._handle):
                self._fill()
                while self._running:
                    self._take(self._messages.get())
                    self._fill()
            return self._code()
        finally:
            for process in self._running.values():
                process.kill()
            self._view.close()

    def _fill(self) -> None:
        """Starts points while there are free slots; what is finished needs none."""
        while self._free and not self._stopping:
            point = self._again.popleft() if self._again else self._proposals.next()
            if point is None:
                return
            if point.pruned:
                self._pruned[point.number] = point.pruned
            if point.experiment.resume != "never" and (point.pruned or result_of(point.path, point.experiment)):
                self._finish(point, self._found(point))
            else:
                self._view.begin(point)
                self._running[point.number] = PointProcess(point, self._free.pop(), self._config_dir, self._messages)

    def _take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "signal" and message["from"] is None:
            self._requested(message["number"])
            return
        process = self._running[message["from"]]
        point = process.point
        if message["kind"] == "exit":
            del self._running[point.number]
            self._free.append(process.slot)
            self._ended(point, message["code"], message["text"])
            return
        if why := _why(message):
            self._told.setdefault(point.number, why)
        elif message["kind"] == "evaluated":
            self._evaluated(process, message["step"], message["metrics"])
        self._view.show(point, message)

    def _evaluated(self, process: PointProcess, step: int, metrics: Mapping[str, float]) -> None:
        number = process.point.number
        if number not in self._pruned and self._proposals.report(process.point, step, metrics):
            self._pruned[number] = Outcome(State.PRUNED, step, metrics)
            self._ask(process, signal.SIGTERM)

    def _requested(self, number: int) -> None:
        """Does what a signal asks for: save; save and leave; the second time, leave at once."""
        if number == SAVE:
            for process in self._running.values():
                process.request(number)
        elif self._signalled:
            self._at_once = True
            self._view.line(f"A second {signal.Signals(number).name}: leaving at once.")
            for process in self._running.values():
                process.request(number)
        else:
            self._signalled = number
            self._view.line(f"{signal.Signals(number).name}: the running points save, then leave; once more leaves at once.")
            self._stop(number)

    def _stop(self, number: int) -> None:
        self._stopping = True
        for process in self._running.values():
            self._ask(process, number)

    def _ask(self, process: PointProcess, number: int) -> None:
        """Asks a point to save and leave, once: it takes a second time for a wish to leave at once."""
        if process.point.number not in self._asked:
            self._asked.add(process.point.number)
            process.request(number)

    def _ended(self, point: Point, code: int, said: str) -> None:
        outcome = self._outcome(point, code, said)
        self._told.pop(point.number, None)
        if outcome.state is State.FAILED and not self._stopping:
            self._failures[point.number] += 1
            if self._settings.on_error == "retry" and code != WRONG_INPUT and self._failures[point.number] <= self._settings.retries:
                tries = f"{self._failures[point.number]} of {self._settings.retries}"
                self._view.line(f"point {point.number} of {self._proposals.total} ({point.label}): {outcome.why}; trying again ({tries})")
                self._again.append(point)
                return
        self._finish(point, outcome)
        if outcome.state is State.FAILED and self._settings.on_error == "stop" and not self._stopping:
            self._stop(signal.SIGTERM)

    def _outcome(self, point: Point, code: int, said: str) -> Outcome:
        found = self._found(point)
        if found.state in (State.DONE, State.PRUNED):
            return found
        if code == DONE:  # of a process that does not write the result
            return replace(found, state=State.DONE)
        if code > 128 or self._at_once or (point.number in self._asked and -code in STOP):
            return Outcome(State.STOPPED, found.step, found.metrics)
        if found.state is State.FAILED:
            return found
        why = self._told.get(point.number) or (f"was killed by {signal.Signals(-code).name}" if code < 0 else said.rpartition("\n")[2])
        return Outcome(State.FAILED, found.step, found.metrics, why or f"its process failed with exit code {code}")

    def _found(self, point: Point) -> Outcome:
        """Gives what a point's directory tells; if it was pruned, what it was then, however far it got before it heard of that."""
        found, pruned = outcome_of(point.path, point.experiment), self._pruned.get(point.number)
        return found if pruned is None or (found.state is State.DONE and found.step == pruned.step) else pruned

    def _finish(self, point: Point, outcome: Outcome) -> None:
        self.outcomes[point.number] = point, outcome
        if outcome.state is not State.STOPPED:
            self._proposals.tell(point, outcome)
        self._view.ended(point, outcome)

    def _code(self) -> int:
        states = [outcome.state for _, outcome in self.outcomes.values()]
        if State.FAILED in states or self._at_once:
            return CRASHED  # or: no exit code may say that all has been saved
        if State.STOPPED in states or (self._stopping and len(states) < self._proposals.total):
            return 128 + self._signalled if self._signalled else CRASHED
        return DONE

    def _handle(self, number: int, frame: Any) -> None:
        # It may interrupt anything: a queue of this kind alone bears that.
        self._messages.put({"kind": "signal", "number": number, "from": None})


def _why(message: Mapping[str, Any]) -> str:
    """Gives the error that a message tells, in one line; none if it tells none."""
    kind = message["kind"]
    if kind == "problem":
        return "; ".join(message["lines"])
    return str(message["text"] if kind == "error" else message["cause"] if kind == "crash" else "")
