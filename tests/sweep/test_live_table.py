"""The progress of a sweep: a live table on a terminal, one line an event elsewhere."""

import io
from pathlib import Path

import pytest

from tests.support.terminal import Clock, rendered
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


class TableOnStrings:
    """A live table that writes to strings, with a manual clock."""

    def __init__(self):
        self.out, self.err, self.clock = io.StringIO(), io.StringIO(), Clock()
        sweep = Sweep(metric="accuracy", mode="max")
        self.table = LiveTable(4, sweep, self.out, self.err, self.clock)

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


@pytest.fixture
def plain():
    return TableOnStrings()


def test_running_points_come_first_then_the_best_of_the_others(plain, monkeypatch):
    plain.start(1, 2, 3).end(2, DONE).show(1, Evaluated(80, {"loss": 0.5, "accuracy": 0.5}, ""))
    plain.show(1, PROGRESS)
    better = RunStatus(State.DONE, 360, {"loss": 0.25, "accuracy": 0.875})
    plain.end(4, better).show(3, Phase("compile", 0))
    assert rendered(plain.table, 100) == [
        "4 points: 2 done, 2 running; 0:05 left",
        "#  model      learning_rate  state     best accuracy  progress",
        "1  cnn        0.1            train            0.5000  ━━━         120/360  0:12 left",
        "3  mobilenet  0.1            compile               -",
        "4  mobilenet  0.01           done             0.8750              360",
        "2  cnn        0.01           done             0.7500              360",
    ]
    monkeypatch.setenv("LINES", "6")
    assert len(rendered(plain.table, 100)) == 5


def test_every_event_is_a_line_without_a_terminal(plain):
    plain.start(1).show(1, Phase("compile", 0)).show(1, Line("warning: slow")).end(2, DONE)
    plain.show(1, Line("Number of devices: 1")).show(1, Output("from print()"))
    plain.show(1, FaultNotice("Fault: kill")).end(1, FAILED)
    plain.table.print_line("a line")
    plain.table.close()
    assert plain.out.getvalue().splitlines() == [
        "point 1 of 4: started",
        "point 1 of 4: warning: slow",
        "point 2 of 4 (model=cnn optimizer.learning_rate=0.01): done, step 360, "
        "test loss 0.2500, test accuracy 0.7500",
        "point 1 of 4: Fault: kill",
        "4 points: 1 done, 1 failed, 2 waiting; 0:10 left",
        "a line",
    ]
    assert plain.err.getvalue() == (
        "error: point 1 of 4 (model=cnn optimizer.learning_rate=0.1): ValueError: no; "
        "see runs/cnn-1/logs\n"
    )
