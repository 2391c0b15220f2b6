"""The data of a report: read from a run, also if files are missing, truncated or damaged."""

import json

import pytest

from trainer.cli.compose import compose
from trainer.cli.report.run_data import differing, read
from trainer.runs import provenance
from trainer.runs.directory import open_run
from trainer.runs.identity import Change
from trainer.runs.status import State


@pytest.fixture
def make(tmp_path):
    """Make a run of some overrides and return its path."""

    def open_and_leave(*overrides):
        run = open_run(compose([f"runs_dir={tmp_path}", *overrides]), [], None)
        run.release()
        return run.path

    return open_and_leave


def write(path, *lines):
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )


def test_read_accepts_run_that_just_started(make):
    run = read(make(), "label")
    assert (run.label, run.outcome.state, run.curves, run.time, run.confusion, run.crash) == (
        "label",
        State.WAITING,
        {},
        None,
        None,
        "",
    )
    assert run.config["train.epochs"] == 30
    assert run.problems == []


def test_curves_are_read_by_split_and_name(make):
    path = make()
    train = [{"step": step, "split": "train", "epoch": 0, "loss": 1 / step} for step in (1, 2)]
    write(
        path / "metrics.jsonl",
        *train,
        {"step": 2, "split": "test", "epoch": 1, "loss": 0.4, "accuracy": 0.5},
    )
    write(
        path / "evaluations.jsonl",
        {"step": 1, "split": "test", "accuracy": float("nan")},
        {"step": 2, "split": "test", "accuracy": 0.5},
    )
    run = read(path, "x")
    assert run.curves["train", "loss"] == [(1, 1.0), (2, 0.5)]
    assert [step for step, _ in run.curves["test", "accuracy"]] == [1, 2]
    assert set(run.curves) == {("train", "loss"), ("test", "loss"), ("test", "accuracy")}
    assert run.best("accuracy") == (2, 0.5)
    assert run.best("loss") == (2, 0.4)
    assert run.best("recall") is None


def test_truncated_lines_are_counted_and_left_out(make):
    path = make()
    write(
        path / "metrics.jsonl", {"step": 1, "split": "train", "loss": 2.0}, "[]", '{"step": 2, "spl'
    )
    run = read(path, "x")
    assert run.curves == {("train", "loss"): [(1, 2.0)]}
    assert run.problems[-1] == "metrics.jsonl: 2 of 3 lines cannot be read"


DAMAGED = {
    "run.json": "{",
    "config.yaml": "train: [",
    "confusion.json": '{"step": 1, "classes": ["a"], "matrix": [[1, 2]]}',
    "result.json": "[1]",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_named_and_hides_nothing_else(make, name):
    path = make()
    write(path / "metrics.jsonl", {"step": 1, "split": "train", "loss": 2.0})
    (path / name).write_text(DAMAGED[name])
    run = read(path, "x")
    assert run.problems
    assert all(len(line.splitlines()) == 1 for line in run.problems)
    assert run.curves


def test_confusion_matrix_is_read(make):
    path = make()
    (path / "confusion.json").write_text(
        '{"step": 9, "classes": ["a", "b"], "matrix": [[3, 1], [0, 4]]}'
    )
    confusion = read(path, "x").confusion
    assert (confusion.step, confusion.classes, confusion.matrix) == (
        9,
        ["a", "b"],
        [[3, 1], [0, 4]],
    )


def test_differing_includes_changes_of_later_commands(make):
    a, b = make(), make("optimizer.learning_rate=0.5", "callbacks=early_stopping")
    provenance.add_entry(a, [], None, None, [Change("checkpoint.keep", 2, 7)])
    (damaged := make("seed=2") / "config.yaml").write_text("[")
    differences = differing([read(damaged.parent, "c"), read(a, "a"), read(b, "b")])
    assert differences["optimizer.learning_rate"] == [None, 0.001, 0.5]
    assert differences["checkpoint.keep"] == [None, 7, 2]
    assert differences["callbacks.early_stopping.metric"][1] is None
    assert "choices.callbacks" not in differences
    assert "callbacks" not in differences
