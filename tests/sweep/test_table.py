"""What people see of a sweep: a table that is redrawn on a terminal, one line an event elsewhere."""

import io
import re
from pathlib import Path

import pytest

from tests.terminal import Clock, Terminal, screen_of
from trainer.outcome import Outcome, State
from trainer.schema import Experiment, Sweep
from trainer.sweep.points import Point
from trainer.sweep.table import Table

RATE = "optimizer.learning_rate"
POINTS = [
    Point(number, {"model": model, RATE: rate}, [], Experiment(), Path(f"runs/{model}-{number}"))
    for number, (model, rate) in enumerate([("cnn", "0.1"), ("cnn", "0.01"), ("mobilenet", "0.1"), ("mobilenet", "0.01")], 1)
]
DONE = Outcome(State.DONE, 360, {"loss": 0.25, "accuracy": 0.75})
FAILED = Outcome(State.FAILED, 40, {}, "ValueError: no")
PROGRESS = {"kind": "progress", "step": 120, "total": 360, "rate": 1519.6, "secs_left": 12.4, "metrics": {"loss": 0.2113}}
HEAD = "#  model      learning_rate  state       best accuracy  progress"


class Shown:
    """A table on strings, with a clock that is moved by hand."""

    def __init__(self, out, total=4, err=None, **sweep):
        self.out, self.err, self.clock = out, err or io.StringIO(), Clock()
        self.table = Table(total, Sweep(**sweep), self.out, self.err, self.clock)

    def begin(self, *numbers):
        for number in numbers:
            self.table.begin(POINTS[number - 1])
        return self

    def show(self, number, **message):
        self.clock.now += 1.0
        self.table.show(POINTS[number - 1], message)
        return self

    def ended(self, number, outcome):
        self.table.ended(POINTS[number - 1], outcome)
        return self

    def screen(self):
        return screen_of(self.out.getvalue(), colors=True)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return Shown(Terminal())


@pytest.fixture
def plain():
    return Shown(io.StringIO())


def test_running_points_come_first_then_the_others_the_best_first(terminal):
    terminal.begin(1, 2, 3).ended(2, DONE).show(1, kind="evaluated", step=80, metrics={"loss": 0.5, "accuracy": 0.5}).show(1, **PROGRESS)
    better = Outcome(State.DONE, 360, {"loss": 0.25, "accuracy": 0.875})
    terminal.ended(4, better).show(3, kind="phase", phase="compile", step=0)
    assert terminal.screen() == [
        "4 points: 2 done, 2 running",
        HEAD,
        "1  cnn        0.1            training           0.5000  [###.......] 120/360  0:12 left",
        "3  mobilenet  0.1            compiling               -",
        "4  mobilenet  0.01           done               0.8750  360",
        "2  cnn        0.01           done               0.7500  360",
    ]


def test_what_nobody_has_begun_is_counted(terminal):
    terminal.begin(1)
    assert terminal.screen()[0] == "4 points: 1 running, 3 waiting"


@pytest.mark.parametrize(("sweep", "best"), [({}, "0.8000"), ({"metric": "loss"}, "0.2000"), ({"mode": "min"}, "0.6000")])
def test_the_best_metric_stays(monkeypatch, sweep, best):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Shown(Terminal(), **sweep).begin(1)
    for accuracy, loss in ((0.6, 0.3), (0.8, 0.2), (0.7, 0.5)):
        shown.show(1, kind="evaluated", step=1, metrics={"loss": loss, "accuracy": accuracy})
    assert shown.screen()[2].split()[-1] == best


def test_phases_are_told_in_words(terminal):
    terminal.begin(1)
    words = []
    for phase in ("join", "start", "compile", "train", "evaluate", "save"):
        words.append(terminal.show(1, kind="phase", phase=phase, step=0).screen()[2].split()[3])
    assert words == ["starting", "starting", "compiling", "training", "evaluating", "saving"]


def test_it_is_drawn_a_few_times_a_second_at_most(terminal):
    terminal.begin(1)
    drawings = 0
    for turn in range(201):  # two seconds
        terminal.clock.now = 1000.0 + turn / 100
        before = len(terminal.out.getvalue())
        terminal.table.show(POINTS[0], {**PROGRESS, "step": turn})
        drawings += len(terminal.out.getvalue()) > before
    assert drawings == 8
    assert "200/360" in terminal.screen()[2]


def test_lines_and_failures_stand_above(terminal):
    terminal = Shown(terminal.out, err=terminal.out)
    terminal.begin(1, 2)
    terminal.show(1, kind="line", text="warning: slow").show(1, kind="line", text="Number of devices: 1").show(
        2, kind="fault", text="Fault: kill"
    )
    terminal.show(2, kind="output", text="from print()").ended(2, FAILED)
    terminal.table.line("SIGTERM: saving")
    assert terminal.screen() == [
        "point 1 of 4: warning: slow",
        "point 2 of 4: Fault: kill",
        "error: point 2 of 4 (model=cnn optimizer.learning_rate=0.01): ValueError: no; see runs/cnn-2/logs",
        "SIGTERM: saving",
        "4 points: 1 failed, 1 running, 2 waiting",
        "#  model  learning_rate  state       best loss  progress",
        "1  cnn    0.1            starting            -",
        "2  cnn    0.01           failed              -  40",
    ]


def test_nothing_is_left_at_the_end(terminal):
    terminal.begin(1).ended(1, DONE).table.close()
    terminal.table.line("after")
    assert terminal.screen() == ["after"]


def test_it_fits_into_a_small_window(monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "5")
    terminal.ended(1, DONE).ended(2, FAILED).begin(3, 4).show(3, kind="evaluated", step=1, metrics={"accuracy": 0.5}).show(3, **PROGRESS)
    assert terminal.screen() == [
        "4 points: 1 done, 1 failed, 2 running",
        "#  model      learning_rate  state       best ac…",
        "3  mobilenet  0.1            training           …",
        "4  mobilenet  0.01           starting           …",
    ]
    monkeypatch.setenv("COLUMNS", "79")
    assert terminal.show(4, **PROGRESS).screen()[3] == "4  mobilenet  0.01           training                -  120/360  0:12 left"


def test_states_have_colours(monkeypatch, terminal):
    monkeypatch.setenv("NO_COLOR", "")
    shown = Shown(terminal.out).ended(1, DONE).ended(2, FAILED).begin(3).ended(4, Outcome(State.PRUNED, 8))
    words = [line.split()[3] for line in shown.screen()[2:]]
    assert words == ["starting", "<32>done<0>", "<31>failed<0>", "<33>pruned<0>"]


def test_a_point_that_is_tried_again_runs_again(terminal):
    terminal.begin(1).ended(1, FAILED).begin(1)
    assert terminal.screen()[0] == "4 points: 1 running, 3 waiting"


def test_without_a_terminal_every_event_is_a_line(plain):
    plain.begin(1).show(1, kind="phase", phase="compile", step=0).show(1, kind="line", text="warning: slow").ended(2, DONE).ended(1, FAILED)
    plain.table.line("a line")
    plain.table.close()
    assert plain.out.getvalue().splitlines() == [
        "point 1 of 4: started",
        "point 1 of 4: warning: slow",
        "point 2 of 4 (model=cnn optimizer.learning_rate=0.01): done, step 360, test loss 0.2500, test accuracy 0.7500",
        "a line",
    ]
    assert plain.err.getvalue() == "error: point 1 of 4 (model=cnn optimizer.learning_rate=0.1): ValueError: no; see runs/cnn-1/logs\n"


def test_without_a_terminal_progress_is_a_line_every_30_seconds(plain):
    plain.begin(1)
    for step in range(100):
        plain.show(1, **{**PROGRESS, "step": step})
    lines = [line for line in plain.out.getvalue().splitlines() if "step" in line]
    assert [int(re.search(r"step (\d+)/", line)[1]) for line in lines] == [29, 59, 89]
    assert lines[0] == "point 1 of 4: step 29/360  0:12 left  loss 0.2113  1,520 examples/s"
