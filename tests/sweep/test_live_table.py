"""The progress of a sweep: a live table on a terminal, one line an event elsewhere."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.terminal import Clock, Terminal, screen_of
from trainer.cluster.messages import Evaluated, FaultNotice, Line, Output, Phase, Progress
from trainer.config.schema import Experiment, Sweep
from trainer.runs.status import RunStatus, State
from trainer.sweep.live_table import LiveTable
from trainer.sweep.search import Point

RATE = "optimizer.learning_rate"
POINTS = [
    Point(number, {"model": model, RATE: rate}, [], Experiment(), Path(f"runs/{model}-{number}"))
    for number, (model, rate) in enumerate(
        [("cnn", "0.1"), ("cnn", "0.01"), ("mobilenet", "0.1"), ("mobilenet", "0.01")], 1
    )
]
DONE = RunStatus(State.DONE, 360, {"loss": 0.25, "accuracy": 0.75})
FAILED = RunStatus(State.FAILED, 40, {}, "ValueError: no")
PROGRESS = Progress(120, 360, 1519.6, 12.4, {"loss": 0.2113})
HEADER = "#  model      learning_rate  state       best accuracy  progress"


class TableOnStrings:
    """A live table that writes to strings, with a manual clock."""

    def __init__(self, out, total=4, err=None, **sweep):
        self.out = out
        self.err = err or io.StringIO()
        self.clock = Clock()
        chosen = Sweep(**{"metric": "accuracy", "mode": "max", **sweep})
        self.table = LiveTable(total, chosen, self.out, self.err, self.clock)

    def start(self, *numbers):
        for number in numbers:
            self.table.start_point(POINTS[number - 1])
        return self

    def show(self, number, message):
        self.clock.now += 1.0
        self.table.show_message(POINTS[number - 1], message)
        return self

    def end(self, number, outcome):
        self.table.end_point(POINTS[number - 1], outcome)
        return self

    def screen(self):
        return screen_of(self.out.getvalue(), colors=True)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return TableOnStrings(Terminal())


@pytest.fixture
def plain():
    return TableOnStrings(io.StringIO())


def test_running_points_come_first_then_the_best_of_the_others(terminal):
    terminal.start(1, 2, 3).end(2, DONE).show(
        1, Evaluated(80, {"loss": 0.5, "accuracy": 0.5}, "")
    ).show(1, PROGRESS)
    better = RunStatus(State.DONE, 360, {"loss": 0.25, "accuracy": 0.875})
    terminal.end(4, better).show(3, Phase("compile", 0))
    assert terminal.screen() == [
        "4 points: 2 done, 2 running; 0:05 left",
        HEADER,
        "1  cnn        0.1            training           0.5000  [###.......] 120/360  0:12 left",
        "3  mobilenet  0.1            compiling               -",
        "4  mobilenet  0.01           done               0.8750  360",
        "2  cnn        0.01           done               0.7500  360",
    ]


def test_lines_and_failures_are_printed_above_the_table(terminal):
    terminal = TableOnStrings(terminal.out, err=terminal.out)
    terminal.start(1, 2)
    terminal.show(1, Line("warning: slow")).show(1, Line("Number of devices: 1")).show(
        2, FaultNotice("Fault: kill")
    )
    terminal.show(2, Output("from print()")).end(2, FAILED)
    terminal.table.print_line("SIGTERM: saving")
    assert terminal.screen() == [
        "point 1 of 4: warning: slow",
        "point 2 of 4: Fault: kill",
        "error: point 2 of 4 (model=cnn optimizer.learning_rate=0.01): ValueError: no; "
        "see runs/cnn-2/logs",
        "SIGTERM: saving",
        "4 points: 1 failed, 1 running, 2 waiting; 0:12 left",
        "#  model  learning_rate  state       best accuracy  progress",
        "1  cnn    0.1            starting                -",
        "2  cnn    0.01           failed                  -  40",
    ]
    terminal.table.close()
    terminal.table.print_line("after")
    assert terminal.screen()[-1] == "after"


def test_table_fits_into_a_small_window(monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "5")
    terminal.end(1, DONE).end(2, FAILED).start(3, 4).show(
        3, Evaluated(1, {"accuracy": 0.5}, "")
    ).show(3, PROGRESS)
    assert terminal.screen() == [
        "4 points: 1 done, 1 failed, 2 running",
        "#  model      learning_rate  state       best ac…",
        "3  mobilenet  0.1            training           …",
        "4  mobilenet  0.01           starting           …",
    ]
    monkeypatch.setenv("COLUMNS", "79")
    assert (
        terminal.show(4, PROGRESS).screen()[3]
        == "4  mobilenet  0.01           training                -  120/360  0:12 left"
    )


def test_every_event_is_a_line_without_a_terminal(plain):
    plain.start(1).show(1, Phase("compile", 0)).show(1, Line("warning: slow")).end(2, DONE).end(
        1, FAILED
    )
    plain.table.print_line("a line")
    plain.table.close()
    assert plain.out.getvalue().splitlines() == [
        "point 1 of 4: started",
        "point 1 of 4: warning: slow",
        "point 2 of 4 (model=cnn optimizer.learning_rate=0.01): done, step 360, "
        "test loss 0.2500, test accuracy 0.7500",
        "4 points: 1 done, 1 failed, 2 waiting; 0:04 left",
        "a line",
    ]
    assert plain.err.getvalue() == (
        "error: point 1 of 4 (model=cnn optimizer.learning_rate=0.1): ValueError: no; "
        "see runs/cnn-1/logs\n"
    )


def test_progress_is_a_line_every_30_seconds_without_a_terminal(plain):
    plain.start(1)
    for step in range(100):
        plain.show(1, replace(PROGRESS, step=step))
    lines = [line for line in plain.out.getvalue().splitlines() if "step" in line]
    assert [int(re.search(r"step (\d+)/", line)[1]) for line in lines] == [29, 59, 89]
    assert lines[0] == "point 1 of 4: step 29/360  0:12 left  loss 0.2113  1,520 examples/s"
