"""What people see while a sweep goes on: a table on a terminal, plain lines elsewhere. No TensorFlow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from trainer import crash
from trainer.console import bar, position_text, progress_text
from trainer.crew import WORDS
from trainer.outcome import Outcome, State, main_metric, smaller_is_better
from trainer.schema import Sweep
from trainer.screen import DRAW_SECS, Screen, cut
from trainer.sweep.points import Point
from trainer.sweep.summary import counted, short, varied_keys
from trainer.tables import aligned, number, overall

_PLAIN_SECS = 30.0  # between two progress lines where there is no terminal
_BAR_WIDTH = 10
_STATE_WIDTH = 10  # the table does not move when another word stands there
_VALUE_WIDTH = 24
_WIDE = 79  # from here on there is room for a bar
_WORDS = {**WORDS, "join": "starting"}
_COLORS = {State.DONE: "green", State.FAILED: "red", State.PRUNED: "yellow"}


@dataclass
class _Row:
    """What is known of a point that has been begun."""

    point: Point
    state: State = State.RUNNING
    word: str = "starting"
    position: str = ""
    bar: str = ""
    best: dict[str, float] = field(default_factory=dict)


class Table:
    """Shows the points of a sweep.

    Args:
        total: how many points there are in all.
        sweep: tells the metric that is shown.
        out: where the table and lines go.
        err: where failures go.
        clock: seconds, monotonic.
    """

    def __init__(
        self, total: int, sweep: Sweep, out: TextIO | None = None, err: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._sweep, self._clock = total, sweep, clock
        self._screen = Screen(out, err, clock)
        self._rows: dict[int, _Row] = {}
        self._told_at = clock()

    def begin(self, point: Point) -> None:
        """Shows that a point is being started, perhaps again."""
        self._rows[point.number] = _Row(point)
        self._tell(f"{self._name(point)}: started")
        self._draw()

    def show(self, point: Point, message: Mapping[str, Any]) -> None:
        """Shows one message of a point; the forms are those of `trainer.channel`. Errors are told by `ended`."""
        row, kind = self._rows.setdefault(point.number, _Row(point)), message["kind"]
        if kind == "fault" or (kind == "line" and message["text"].startswith("warning: ")):
            self.line(f"{self._name(point)}: {message['text']}")
        elif kind == "phase":
            row.word = _WORDS.get(message["phase"], "training")
        elif kind == "progress":
            row.word, row.position, row.bar = "training", position_text(message), f"{bar(message, _BAR_WIDTH)} "
            if self._clock() - self._told_at >= _PLAIN_SECS:
                self._told_at = self._clock()
                self._tell(f"{self._name(point)}: step {progress_text(message)}")
        elif kind == "evaluated":
            self._take(row, message["metrics"])
        if self._clock() - self._screen.drawn_at >= DRAW_SECS:
            self._draw()

    def ended(self, point: Point, outcome: Outcome) -> None:
        """Shows what a point came to; also one that was finished before."""
        row = self._rows.setdefault(point.number, _Row(point))
        row.state, row.word, row.position, row.bar = outcome.state, outcome.state, str(outcome.step), ""
        self._take(row, outcome.metrics)
        if outcome.state is State.FAILED:
            told = crash.path_in(point.path)
            where = told if told.exists() else point.path / "logs"
            self._screen.error(f"error: {self._name(point)} ({point.label}): {outcome.why}; see {where}")
        else:
            metrics = "".join(f", test {name} {number(value)}" for name, value in overall(outcome.metrics).items())
            self._tell(f"{self._name(point)} ({point.label}): {outcome.state}, step {outcome.step}{metrics}")
        self._draw()

    def line(self, text: str) -> None:
        """Shows a line above the table."""
        self._screen.line(text)

    def close(self) -> None:
        """Removes the table: what the sweep came to is told otherwise."""
        self._rows.clear()
        self._screen.clear()

    def _name(self, point: Point) -> str:
        return f"point {point.number} of {self._total}"

    def _tell(self, text: str) -> None:
        """Shows in a line what the table would show."""
        if not self._screen.is_live:
            self._screen.line(text)

    def _take(self, row: _Row, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            better = min if smaller_is_better(name, self._sweep.mode) else max
            row.best[name] = better(row.best.get(name, value), value)

    def _draw(self) -> None:
        if self._rows:
            self._screen.draw(self._lines(*self._screen.size()))

    def _lines(self, width: int, height: int) -> list[str]:
        """Gives the table: counts, the running points, and of the others as many as there is room for, the best first."""
        metric = self._sweep.metric or main_metric({name for row in self._rows.values() for name in row.best})
        rows = sorted(self._rows.values(), key=lambda row: self._rank(row, metric))
        states = [row.state for row in rows]
        counts = counted([*states, *[State.WAITING] * (self._total - len(states))])
        rows = rows[: max(0, height - 2)]
        keys = varied_keys(row.point for row in rows)
        head = ["#", *short(keys), f"{'state':{_STATE_WIDTH}}", f"best {metric}", "progress"]
        cells = [
            [
                str(row.point.number),
                *(cut(row.point.varied.get(key, "-"), _VALUE_WIDTH) for key in keys),
                row.word,
                number(row.best[metric]) if metric in row.best else "-",
                row.bar * (width >= _WIDE) + row.position,  # last, because its length changes
            ]
            for row in rows
        ]
        lines = aligned([head, *cells], ">" + "<" * (len(keys) + 1) + "><")
        return [counts, lines[0], *(self._colored(line, row) for line, row in zip(lines[1:], rows, strict=True))]

    def _rank(self, row: _Row, metric: str) -> tuple[bool, float, int]:
        value = row.best.get(metric, math.nan)
        value = math.inf if math.isnan(value) else value if smaller_is_better(metric, self._sweep.mode) else -value
        ended = row.state is not State.RUNNING
        return ended, value if ended else 0.0, row.point.number

    def _colored(self, line: str, row: _Row) -> str:
        before, word, after = line.rpartition(f" {row.word} ")
        return f"{before} {self._screen.paint(row.word, _COLORS.get(row.state, ''))} {after}" if word else line
