"""What the page shows of a run: also if files are missing, truncated or damaged."""

import pytest

from trainer.cli.compose import compose
from trainer.cli.page.run_data import read
from trainer.runs.directory import open_run
from trainer.runs.status import State


@pytest.fixture
def make(tmp_path):
    """Make a run of some overrides and return its path."""

    def open_and_leave(*overrides):
        run = open_run(compose([f"runs_dir={tmp_path}", *overrides]), [], None)
        run.release()
        return run.path

    return open_and_leave


def test_read_accepts_run_that_just_started(make):
    run = read(path := make())
    assert (run.place, run.outcome.state, run.time, run.confusion, run.crash) == (
        str(path),
        State.WAITING,
        None,
        None,
        "",
    )
    assert run.config["train.epochs"] == 30
    assert run.problems == []


DAMAGED = {
    "run.json": "{",
    "config.yaml": "train: [",
    "confusion.json": '{"step": 1, "classes": ["a"], "matrix": [[1, 2]]}',
    "result.json": "[1]",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_named_and_hides_nothing_else(make, name):
    path = make()
    (path / "crash.txt").write_text("what happened")
    (path / name).write_text(DAMAGED[name])
    run = read(path)
    assert run.problems
    assert all(len(line.splitlines()) == 1 for line in run.problems)
    assert run.crash == "what happened"


def test_confusion_matrix_is_read(make):
    path = make()
    (path / "confusion.json").write_text(
        '{"step": 9, "classes": ["a", "b"], "matrix": [[3, 1], [0, 4]]}'
    )
    confusion = read(path).confusion
    assert (confusion.step, confusion.classes, confusion.matrix) == (
        9,
        ["a", "b"],
        [[3, 1], [0, 4]],
    )
