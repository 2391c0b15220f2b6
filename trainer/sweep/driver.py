"""Runs the points of a sweep in parallel, each in a process of its own."""

from __future__ import annotations

import queue
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainer.cluster.messages import (
    Evaluated,
    Exit,
    Message,
    SignalReceived,
)
from trainer.cluster.signals import forward_to
from trainer.cluster.stop_requests import LEAVE, STOP, Decision, StopRequests
from trainer.config.rules.checkpoint import selecting_split
from trainer.config.schema import Sweep
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.launch.display.terminal import is_attended
from trainer.launch.processes.fork_server import ForkServer
from trainer.runs.directory import read_result
from trainer.runs.status import RunStatus, State, run_status
from trainer.sweep.live_table import LiveTable
from trainer.sweep.points.point_process import PointMessages, PointProcess, error_in
from trainer.sweep.points.points import Point, PointResult
from trainer.sweep.points.resources import ResourceShare
from trainer.sweep.search.search import Search


class Driver:
    """Runs points until there are no more, or until it is stopped.

    Attributes:
        results: the results of the points that have ended, by number.

    Args:
        search: chooses the points.
        settings: what to do after a failure.
        shares: the resources of each point that trains in parallel.
        config_dir: the user's own folder of choices, for the record of each run.
        table: shows the progress.
    """

    def __init__(
        self,
        search: Search,
        settings: Sweep,
        shares: Sequence[ResourceShare],
        config_dir: str | None,
        table: LiveTable,
    ) -> None:
        self.results: dict[int, PointResult] = {}
        self._search = search
        self._settings = settings
        self._config_dir = config_dir
        self._table = table
        self._free_shares = list(shares)
        self._running: dict[int, PointProcess] = {}
        self._to_start_again: deque[Point] = deque()
        self._first_errors: dict[int, str] = {}
        self._asked_to_stop: set[int] = set()
        self._pruned: dict[int, RunStatus] = {}
        self._stop_requests = StopRequests(is_attended=is_attended())
        self._is_stopping = False
        self._is_leaving_at_once = False
        self._problem: ConfigError | None = None
        self._messages: PointMessages = queue.SimpleQueue()
        self._server: ForkServer | None = None

    def run(self) -> int:
        """Run the points.

        Returns:
            The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

        Raises:
            ConfigError: the search cannot continue; the running points have saved.
        """
        try:
            with forward_to(self._enqueue_signal):
                self._start_points()
                while self._running:
                    try:
                        self._handle_message(*self._messages.get())
                        self._start_points()
                    except ConfigError as error:
                        self._problem = self._problem or error
                        self._stop_all(signal.SIGTERM)
            if self._problem:
                raise self._problem
            return self._exit_code()
        finally:
            for process in self._running.values():
                process.kill()
            if self._server:
                self._server.release()
            self._table.close()

    def _start_points(self) -> None:
        """Start points while there are free resources; finished points need no process."""
        while self._free_shares and not self._is_stopping:
            point = (
                self._to_start_again.popleft()
                if self._to_start_again
                else self._search.next_point()
            )
            if point is None:
                return
            if point.pruned:
                self._pruned[point.number] = point.pruned
            if point.experiment.resume != "never" and (
                point.pruned or read_result(point.path, point.experiment)
            ):
                self._record_result(point, self._recorded_outcome(point))
            else:
                self._table.start_point(point)
                if self._server is None:  # not before the first point that needs it
                    self._server = ForkServer.acquire()
                self._running[point.number] = PointProcess(
                    point,
                    self._free_shares.pop(),
                    self._config_dir,
                    self._messages,
                    self._server,
                )

    def _handle_message(self, number: int | None, message: Message) -> None:
        if number is None:
            if isinstance(message, SignalReceived):
                self._handle_signal(message.number)
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
                self._handle_exit(point, code, output)
                return
            case Evaluated(step, metrics):
                self._prune_if_behind(process, step, metrics)
            case _ if error := error_in(message):
                self._first_errors.setdefault(number, error)
        self._table.show_message(point, message)

    def _prune_if_behind(
        self, process: PointProcess, step: int, metrics: Mapping[str, float]
    ) -> None:
        point = process.point
        if point.number not in self._pruned and self._search.should_prune(point, step, metrics):
            split = selecting_split(point.experiment)
            self._pruned[point.number] = RunStatus(State.PRUNED, step, metrics, split=split)
            self._stop_point(process, signal.SIGTERM)

    def _handle_signal(self, number: int) -> None:
        """Handle a request: save, save and leave or, the second time, leave at once."""
        name = signal.Signals(number).name
        match self._stop_requests.decide(number):
            case Decision.SAVE:
                for process in self._running.values():
                    process.forward_signal(number)
            case Decision.LEAVE:
                self._is_leaving_at_once = True
                self._table.print_line(f"A second {name}: leaving at once.")
                for process in self._running.values():
                    process.forward_signal(LEAVE)
            case Decision.STOP:
                self._table.print_line(
                    f"{name}: the running points save, then leave{self._stop_requests.hint()}."
                )
                self._stop_all(number)

    def _stop_all(self, number: int) -> None:
        self._is_stopping = True
        for process in self._running.values():
            self._stop_point(process, number)

    def _stop_point(self, process: PointProcess, number: int) -> None:
        """Ask a point to save and leave, once."""
        if process.point.number not in self._asked_to_stop:
            self._asked_to_stop.add(process.point.number)
            process.forward_signal(number)

    def _handle_exit(self, point: Point, code: int, output: str) -> None:
        outcome = self._outcome_of_exit(point, code, output)
        self._record_result(point, outcome)
        if outcome.state is State.FAILED and self._settings.on_error == "stop":
            self._stop_all(signal.SIGTERM)

    def _outcome_of_exit(self, point: Point, code: int, output: str) -> RunStatus:
        outcome = self._recorded_outcome(point)
        if outcome.state in (State.DONE, State.PRUNED):
            return outcome
        if code == DONE:  # of a process that does not write the result
            return replace(outcome, state=State.DONE)
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

    def _recorded_outcome(self, point: Point) -> RunStatus:
        """Return the outcome in the run directory; of a pruned point, that of its pruning.

        A pruned point may train on for some steps before it stops.
        """
        outcome = run_status(point.path, point.experiment)
        pruned = self._pruned.get(point.number)
        if pruned is None or (outcome.state is State.DONE and outcome.step == pruned.step):
            return outcome
        return pruned

    def _record_result(self, point: Point, outcome: RunStatus) -> None:
        self.results[point.number] = PointResult(point, outcome)
        if outcome.state is not State.STOPPED:
            self._search.record_outcome(point, outcome)
        self._table.end_point(point, outcome)

    def _exit_code(self) -> int:
        states = [result.outcome.state for result in self.results.values()]
        if State.FAILED in states or self._is_leaving_at_once:
            return CRASHED  # 130 and 143 would promise that every point has saved
        is_incomplete = self._is_stopping and len(states) < self._search.total
        if State.STOPPED in states or is_incomplete:
            number = self._stop_requests.number
            return 128 + number if number else CRASHED
        return DONE

    def _enqueue_signal(self, number: int) -> None:
        # A signal handler may interrupt any code: only this kind of queue is safe then.
        self._messages.put((None, SignalReceived(number)))
