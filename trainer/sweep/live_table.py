"""The progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from trainer.cli.terminal import GAP
from trainer.cluster.messages import Evaluated, FaultNotice, Line, Message, Phase, Progress
from trainer.config.directions import rank
from trainer.config.schema import Sweep
from trainer.launch.display import (
    PLAIN_SECS,
    Screen,
    position_text,
    progress_bar,
    progress_parts,
)
from trainer.runs.status import RunStatus, State
from trainer.sweep.points import Point
from trainer.sweep.search import Goal
from trainer.sweep.summary import count_states, varied_keys
from trainer.text import format_metric, printable, short_keys, without_classes

_STATE_WIDTH = 8  # of the longest state, so that columns keep their place
_MAX_VALUE_WIDTH = 24
_COLORS = {State.DONE: "green", State.FAILED: "red", State.PRUNED: "yellow"}


@dataclass
class _Row:
    point: Point
    state: State = State.RUNNING
    state_text: str = "start"  # or, while it trains, its phase
    position: str = ""
    progress: Progress | None = None
    best: float = math.nan  # value of the sweep's metric


class LiveTable:
    """Shows the points of a sweep."""

    def __init__(
        self,
        total: int,
        sweep: Sweep,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._goal = Goal.all_of(sweep)[0]
        self._clock = clock
        self._screen = Screen(out, err, self)
        self._rows: dict[int, _Row] = {}
        self._progress_at = clock()

    def start_point(self, point: Point) -> None:
        """Show that a point is starting, perhaps again."""
        self._rows[point.number] = _Row(point)
        self._print_plain(f"{self._name(point)}: started")
        self._screen.start()

    def show_message(self, point: Point, message: Message) -> None:
        """Show a message of a point; errors are handled by `end_point`."""
        row = self._row(point)
        match message:
            case FaultNotice(text):
                self.line(f"{self._name(point)}: {text}")
            case Line(text) if message.is_warning:
                self.line(f"{self._name(point)}: {text}")
            case Phase(phase):
                row.state_text = phase
            case Progress():
                row.state_text = "train"
                row.position = position_text(message)
                row.progress = message
                if self._clock() - self._progress_at >= PLAIN_SECS:
                    self._progress_at = self._clock()
                    self._print_plain(
                        f"{self._name(point)}: step {'  '.join(progress_parts(message))}"
                    )
            case Evaluated(metrics=metrics):
                self._update_best(row, metrics)

    def end_point(self, point: Point, outcome: RunStatus) -> None:
        """Show the outcome of a point, also of one that an earlier command has finished."""
        row = self._row(point)
        row.state = outcome.state
        row.state_text = outcome.state
        row.position = str(outcome.step)
        row.progress = None
        self._update_best(row, outcome.metrics)
        name = f"{self._name(point)} ({point.label})"
        if outcome.state is State.FAILED:
            self.error(f"{name}: {outcome.error}; see {point.path / 'logs'}")
        else:
            metrics = "".join(
                f", {outcome.split} {metric} {format_metric(value)}"
                for metric, value in without_classes(outcome.metrics).items()
            )
            self._print_plain(f"{name}: {outcome.state}, step {outcome.step}{metrics}")

    def line(self, text: str) -> None:
        """Show a line above the table."""
        self._screen.line(text)

    def error(self, text: str) -> None:
        self._screen.error(f"error: {text}")

    def close(self) -> None:
        self._screen.close()

    def _row(self, point: Point) -> _Row:
        return self._rows.setdefault(point.number, _Row(point))

    def _name(self, point: Point) -> str:
        return f"point {point.number} of {max(self._total, point.number)}"

    def _print_plain(self, text: str) -> None:
        """Print a line where there is no table that shows the same."""
        if not self._screen.is_live:
            self._screen.line(text)

    def _update_best(self, row: _Row, metrics: Mapping[str, float]) -> None:
        value = metrics.get(self._goal.metric, math.nan)
        row.best = min(row.best, value, key=lambda each: rank(each, self._goal.mode))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the table: counts, a header, running points, then the best of the others."""
        rows = sorted(list(self._rows.values()), key=self._rank)[: max(0, options.size.height - 3)]
        keys = varied_keys(row.point for row in rows)
        grid = Table.grid(
            Column(justify="right", no_wrap=True),
            *(Column(max_width=_MAX_VALUE_WIDTH) for _ in keys),
            Column(min_width=_STATE_WIDTH, no_wrap=True),
            Column(justify="right"),
            "",
            Column(no_wrap=True),
            padding=(0, GAP, 0, 0),
        )
        grid.add_row("#", *short_keys(keys), "state", f"best {self._goal.metric}", "progress")
        for row in rows:
            grid.add_row(
                str(row.point.number),
                *(printable(row.point.shown.get(key, "-")) for key in keys),
                Text(row.state_text, _COLORS.get(row.state, "")),
                "-" if math.isnan(row.best) else format_metric(row.best),
                progress_bar(row.progress) if row.progress else "",
                row.position,
            )
        states = [row.state for row in list(self._rows.values())]
        yield count_states([*states, *[State.WAITING] * (self._total - len(states))])
        yield grid

    def _rank(self, row: _Row) -> tuple[bool, float, int]:
        """Return the sort key of a row: running points by number, the others by metric."""
        if row.state is State.RUNNING:
            return False, 0.0, row.point.number
        return True, rank(row.best, self._goal.mode), row.point.number
