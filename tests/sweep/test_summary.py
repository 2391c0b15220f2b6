"""The summary of a sweep: its content, its order, its folder."""

import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.config.schema import Experiment, Sweep
from trainer.errors import ConfigError, StorageError
from trainer.runs.status import RunStatus, State
from trainer.sweep import summary
from trainer.sweep.points import Point, PointResult

BY_BOTH = Sweep(metric=["accuracy", "loss"], mode=["max", "min"])
BY_ACCURACY = Sweep(metric="accuracy", mode="max")
RATE = "optimizer.learning_rate"


def make_result(number, state, accuracy=None, *, loss=0.5, why="", varied=None, step=20):
    metrics = {} if accuracy is None else {"loss": loss, "accuracy": accuracy}
    varied = varied or {"model": ("cnn", "softmax")[number % 2], RATE: f"0.{number}"}
    point = Point(number, varied, [], Experiment(), Path(f"runs/run-{number}"))
    return PointResult(point, RunStatus(state, step, metrics, why))


RESULTS = [
    make_result(1, State.DONE, 0.75),
    make_result(2, State.FAILED, step=0, why='ValueError: no, "never"'),
    make_result(3, State.DONE, 0.9375, loss=0.000123456789),
    make_result(4, State.WAITING, step=0),
    make_result(5, State.PRUNED, 0.75),
]
TEXT = """\
5 points: 2 done, 1 failed, 1 pruned, 1 waiting; the best accuracy first:
model    learning_rate  state    step  accuracy      loss  run
softmax  0.3            done       20    0.9375  0.000123  runs/run-3
softmax  0.1            done       20    0.7500    0.5000  runs/run-1
softmax  0.5            pruned     20    0.7500    0.5000  runs/run-5
cnn      0.2            failed      0         -         -  runs/run-2
cnn      0.4            waiting     0         -         -  runs/run-4
model=cnn optimizer.learning_rate=0.2: ValueError: no, "never"
"""


def order(folder, sweep, results):
    summary.write_summary(folder, sweep, results)
    return [
        point["run"].rpartition("-")[2]
        for point in json.loads((folder / "summary.json").read_text())["points"]
    ]


def test_summary_is_a_table_as_text_and_json(tmp_path):
    folder = tmp_path / "runs" / "sweeps" / "mine"
    summary.write_summary(folder, BY_ACCURACY, RESULTS[::-1])
    assert (folder / "summary.txt").read_text() == TEXT
    content = json.loads((folder / "summary.json").read_text())
    assert (content["metric"], content["mode"], len(content["points"])) == ("accuracy", "max", 5)
    assert content["points"][0] == {
        "varied": {"model": "softmax", RATE: "0.3"}, "state": "done", "step": 20, "why": "",
        "metrics": {"loss": 0.000123456789, "accuracy": 0.9375}, "run": "runs/run-3",
    }  # fmt: skip
    with pytest.raises(StorageError, match=r"txt/x could not be written: Not a directory"):
        summary.write_summary(folder / "summary.txt" / "x", BY_ACCURACY, RESULTS)


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [("accuracy", "min", "15324"), ("loss", "min", "31524"), ("f1", "max", "12345")],
)
def test_summary_is_sorted_by_the_metric(tmp_path, metric, mode, expected):
    assert order(tmp_path, Sweep(metric=metric, mode=mode), RESULTS) == list(expected)


FRONT = """\
5 points: 4 done, 1 waiting; the Pareto front of accuracy, loss first:
model    learning_rate  pareto  state    step  accuracy    loss  run
softmax  0.1            yes     done       20    0.7500  0.5000  runs/run-1
cnn      0.2            yes     done       20    0.6250  0.2500  runs/run-2
softmax  0.3            -       done       20    0.7500  0.7500  runs/run-3
cnn      0.4            -       done       20    0.6250  0.5000  runs/run-4
softmax  0.5            -       waiting     0         -       -  runs/run-5
"""


def test_pareto_front_of_several_metrics_comes_first(tmp_path):
    results = [
        make_result(1, State.DONE, 0.75, loss=0.5),
        make_result(2, State.DONE, 0.625, loss=0.25),
        make_result(3, State.DONE, 0.75, loss=0.75),
        make_result(4, State.DONE, 0.625, loss=0.5),
        make_result(5, State.WAITING, step=0),
    ]
    summary.write_summary(tmp_path, BY_BOTH, results[::-1])
    assert (tmp_path / "summary.txt").read_text() == FRONT
    content = json.loads((tmp_path / "summary.json").read_text())
    assert (content["metric"], content["mode"]) == (["accuracy", "loss"], ["max", "min"])
    assert [point["pareto"] for point in content["points"]] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0.5, 0.5), (0.5, 0.5)], "12"),  # equal points do not beat each other
        ([(0.5, math.nan), (0.25, 0.5)], "2"),
        ([(0.9, 0.9), (0.8, 0.1), (0.85, 0.95), (0.7, 0.2)], "12"),
    ],
)
def test_point_is_on_the_front_unless_another_is_better_in_a_metric_and_as_good_in_all(
    tmp_path, points, expected
):
    results = [
        make_result(number, State.DONE, accuracy, loss=loss)
        for number, (accuracy, loss) in enumerate(points, 1)
    ]
    assert order(tmp_path, BY_BOTH, results)[: len(expected)] == list(expected)
    content = json.loads((tmp_path / "summary.json").read_text())
    assert sum(point["pareto"] for point in content["points"]) == len(expected)


def test_test_metrics_of_several_metrics_have_a_column_each(tmp_path):
    (result,) = RESULTS[:1]
    outcome = replace(result.outcome, test={"loss": 0.25, "accuracy": 0.5})
    summary.write_summary(tmp_path, BY_BOTH, [PointResult(result.point, outcome)])
    header, row = (tmp_path / "summary.txt").read_text().splitlines()[1:]
    assert "test accuracy  test loss  run" in header
    assert row.split()[-3:-1] == ["0.5000", "0.2500"]


def test_points_without_a_finite_loss_come_last(tmp_path):
    losses = (3.0, math.nan, 2.0, 1.0, -1.0)
    results = [
        PointResult(result.point, RunStatus(State.DONE, 1, {"loss": loss}))
        for result, loss in zip(RESULTS, losses, strict=True)
    ]
    assert order(tmp_path, Sweep(metric="loss", mode="min"), results) == list("54312")
    content = json.loads((tmp_path / "summary.json").read_text())
    assert (content["metric"], content["mode"]) == ("loss", "min")
    assert content["points"][-1]["metrics"] == {"loss": None}


def folder(*overrides, keys=("model", RATE)):
    return summary.summary_folder(
        compose([item for item in overrides if "," not in item]), keys, overrides
    )


def test_folder_depends_on_varied_keys_and_shared_values_alone():
    base = folder("seed=3")
    more_values = (f"{RATE}=0.1,0.01,0.001", "model=cnn,mobilenet")
    assert folder("seed=3", *more_values) == base
    assert folder("sweep.jobs=2", "search=random", "checkpoint.keep=3", "seed=3") == base
    assert folder("seed=3", keys=(RATE, "model")) == base
    assert folder("seed=4") != base
    assert folder("seed=3", keys=("model",)) != base
    assert folder("seed=3", "experiment=mnist_tutorial") != base
    assert base.parent == Path("runs/sweeps")
    assert base.name == "model-learning_rate-" + base.name[-8:]
    assert folder("runs_dir=here", "sweep.name=first") == Path("here/sweeps/first")
    assert len(folder(keys=[f"model.a_long_option_{number}" for number in range(9)]).name) < 60


def test_folder_is_locked_by_one_command(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "_LOCK_WAIT_SECS", 0.01)
    with (
        closing(summary.lock_folder(tmp_path)),
        pytest.raises(ConfigError, match="the same sweep is running; wait for it, or stop it"),
    ):
        summary.lock_folder(tmp_path)
    summary.lock_folder(tmp_path).close()
