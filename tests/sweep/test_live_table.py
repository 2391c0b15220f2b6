"""The progress of a sweep as a live table."""

import io
from pathlib import Path

from tests.support.terminal import Clock, rendered
from trainer.cluster.messages import Evaluated, Phase, Progress
from trainer.config.schema import Experiment, Sweep
from trainer.runs.status import RunStatus, State
from trainer.sweep.live_table import LiveTable
from trainer.sweep.points import Point

RATE = "optimizer.learning_rate"
POINTS = [
    Point(number, {"model": model, RATE: rate}, [], Experiment(), Path(f"runs/{model}-{number}"))
    for number, (model, rate) in enumerate(
        [("cnn", "0.1"), ("cnn", "0.01"), ("mobilenet", "0.1"), ("mobilenet", "0.01")], 1
    )
]


def test_running_points_come_first_then_the_best_of_the_others(monkeypatch):
    clock = Clock()
    sweep = Sweep(metric="accuracy", mode="max")
    table = LiveTable(4, sweep, io.StringIO(), io.StringIO(), clock)
    for point in POINTS[:3]:
        table.start_point(point)
    table.show_message(POINTS[0], Evaluated(80, {"loss": 0.5, "accuracy": 0.5}, ""))
    table.show_message(POINTS[0], Progress(120, 360, 1519.6, 12.4, {"loss": 0.2113}))
    table.show_message(POINTS[2], Phase("compile", 0))
    clock.now += 3.0
    for point, accuracy in ((POINTS[1], 0.75), (POINTS[3], 0.875)):
        table.end_point(point, RunStatus(State.DONE, 360, {"loss": 0.25, "accuracy": accuracy}))
    assert rendered(table, 100) == [
        "4 points: 2 done, 2 running",
        "#  model      learning_rate  state     best accuracy  progress",
        "1  cnn        0.1            train            0.5000  ━━━         120/360  12 s left",
        "3  mobilenet  0.1            compile               -",
        "4  mobilenet  0.01           done             0.8750              360",
        "2  cnn        0.01           done             0.7500              360",
    ]
    monkeypatch.setenv("LINES", "6")
    assert len(rendered(table, 100)) == 5
