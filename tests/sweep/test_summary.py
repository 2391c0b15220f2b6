"""The summary of a sweep: what it says, in which order, and that it says the same however it came about."""

import csv
import json
import math
import random
from pathlib import Path

import pytest

from trainer.cli import compose
from trainer.errors import StorageError
from trainer.outcome import Outcome, State
from trainer.schema import Experiment, Sweep
from trainer.sweep import summary
from trainer.sweep.points import Point

RATE = "optimizer.learning_rate"


def row(number, state, accuracy=None, *, loss=0.5, why="", varied=None, step=20):
    metrics = {} if accuracy is None else {"loss": loss, "accuracy": accuracy}
    varied = varied or {"model": ("cnn", "softmax")[number % 2], RATE: f"0.{number}"}
    return Point(number, varied, [], Experiment(), Path(f"runs/run-{number}")), Outcome(state, step, metrics, why)


ROWS = [
    row(1, State.DONE, 0.75),
    row(2, State.FAILED, step=0, why='ValueError: no, "never"'),
    row(3, State.DONE, 0.9375, loss=0.000123456789),
    row(4, State.WAITING, step=0),
    row(5, State.PRUNED, 0.75),
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


def order(folder, sweep, rows):
    summary.write(folder, sweep, rows)
    return [point["run"].rpartition("-")[2] for point in json.loads((folder / "summary.json").read_text())["points"]]


def test_the_table_that_people_read(tmp_path):
    folder = tmp_path / "runs" / "sweeps" / "mine"
    assert summary.write(folder, Sweep(), ROWS) == TEXT
    assert (folder / "summary.txt").read_text() == TEXT
    assert sorted(file.name for file in folder.iterdir()) == ["summary.csv", "summary.json", "summary.txt"]


def test_the_table_that_programs_read(tmp_path):
    summary.write(tmp_path, Sweep(), ROWS)
    with (tmp_path / "summary.csv").open(newline="") as file:
        head, first, *_, fourth, _ = csv.reader(file)
    assert head == ["model", RATE, "state", "step", "accuracy", "loss", "run", "why"]
    assert first == ["softmax", "0.3", "done", "20", "0.9375", "0.000123456789", "runs/run-3", ""]
    assert fourth == ["cnn", "0.2", "failed", "0", "", "", "runs/run-2", 'ValueError: no, "never"']


def test_json_has_all(tmp_path):
    summary.write(tmp_path, Sweep(), ROWS[1:3])
    done = {"state": "done", "step": 20, "metrics": {"loss": 0.000123456789, "accuracy": 0.9375}, "run": "runs/run-3", "why": ""}
    failed = {"state": "failed", "step": 0, "metrics": {}, "run": "runs/run-2", "why": 'ValueError: no, "never"'}
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "metric": "accuracy",
        "mode": "max",
        "points": [{"varied": {"model": "softmax", RATE: "0.3"}, **done}, {"varied": {"model": "cnn", RATE: "0.2"}, **failed}],
    }


def test_the_same_rows_in_any_order_give_the_same_bytes(tmp_path):
    found = set()
    for number in range(5):
        rows = random.Random(number).sample(ROWS, len(ROWS))
        summary.write(tmp_path / str(number), Sweep(), rows)
        found.add(tuple(file.read_bytes() for file in sorted((tmp_path / str(number)).iterdir())))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        (None, "auto", "31524"),
        (None, "min", "15324"),
        ("loss", "auto", "31524"),
        ("loss", "max", "15324"),
        ("accuracy", "max", "31524"),
        ("f1", "auto", "12345"),
    ],
)
def test_it_is_sorted_by_the_metric(tmp_path, metric, mode, expected):
    assert order(tmp_path, Sweep(metric=metric, mode=mode), ROWS) == list(expected)


def test_without_an_accuracy_the_smallest_loss_comes_first(tmp_path):
    rows = [(point, Outcome(State.DONE, 1, {"loss": loss})) for (point, _), loss in zip(ROWS, (3.0, math.nan, 2.0, 1.0, -1.0), strict=True)]
    assert order(tmp_path, Sweep(), rows) == list("54312")
    content = json.loads((tmp_path / "summary.json").read_text())
    assert (content["metric"], content["mode"], content["points"][-1]["metrics"]) == ("loss", "min", {"loss": None})


def test_keys_with_the_same_last_part_are_written_out(tmp_path):
    text = summary.write(tmp_path, Sweep(), [row(1, State.DONE, 0.5, varied={"model.width": "4", "task.width": "5", "seed": "1"})])
    assert text.splitlines()[1].split()[:3] == ["model.width", "task.width", "seed"]
    assert text.startswith("1 point: 1 done; ")


def test_points_may_vary_different_keys(tmp_path):
    text = summary.write(
        tmp_path, Sweep(), [row(1, State.DONE, 0.5, varied={"seed": "1"}), row(2, State.DONE, 0.4, varied={"jit": "true"})]
    )
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["seed", "jit"], ["1", "-"], ["-", "true"]]


def folder(*overrides, keys=("model", RATE)):
    return summary.folder_of(compose([item for item in overrides if "," not in item]), keys, overrides)


def test_the_folder_is_named_by_what_is_varied():
    found = folder(f"{RATE}=0.1,0.01", "model=cnn,softmax", "seed=3")
    assert found.parent == Path("runs/sweeps")
    assert found.name == "model-learning_rate-" + found.name[-8:]


def test_the_folder_is_the_same_for_the_same_sweep_however_it_is_run():
    base = folder("seed=3")
    assert folder("seed=3", f"{RATE}=0.1,0.01,0.001", "model=cnn,mobilenet") == base  # values were added
    assert folder("sweep.jobs=2", "search=random", "checkpoint.keep=3", "seed=3") == base
    assert folder("seed=3", keys=(RATE, "model")) == base
    assert folder("seed=4") != base
    assert folder("seed=3", keys=("model",)) != base
    assert folder("seed=3", "experiment=mnist_tutorial") != base


def test_the_folder_can_be_named(tmp_path):
    assert folder(f"runs_dir={tmp_path}", "sweep.name=first") == tmp_path / "sweeps" / "first"


def test_a_name_of_many_keys_stays_short():
    assert len(folder(keys=[f"model.a_long_option_{number}" for number in range(9)]).name) < 60


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StorageError, match=r"runs/sweeps/x could not be written: Not a directory"):
        summary.write(tmp_path / "runs" / "sweeps" / "x", Sweep(), ROWS)
