"""`python train.py checkpoints <run>`: the checkpoints of a run, verified."""

import re

import pytest

from tests.support.command_line import run_here
from trainer.cli.compose import compose
from trainer.runs import checkpoint_marker, provenance
from trainer.runs.directory import open_run
from trainer.runs.identity import Change


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A run with three checkpoints, of which the first is the best one."""
    monkeypatch.chdir(tmp_path)
    run = open_run(compose(["checkpoint.keep=1", "checkpoint.best.metric=accuracy"]), [], None)
    directory = run.path / "checkpoints"
    directory.mkdir()
    run.release()
    for step, accuracy in ((5, 0.9), (10, 0.8), (15, None)):
        for name, size in (("index", 10), ("data-00000-of-00001", 1500)):
            (directory / f"ckpt-{step}.{name}").write_bytes(b"x" * size)
        metrics = {"loss": 0.25, "accuracy": accuracy} if accuracy else None
        checkpoint_marker.commit(directory, step, metrics)
    return run.path


def table(path):
    """Return the exit code, the rows without their times, and the text after the table."""
    done = run_here("checkpoints", str(path))
    assert done.err == ""
    head, *lines = done.out.splitlines()
    assert head.split() == ["step", "saved", "size", "kept", "as", "files", "loss", "accuracy"]
    rows = [re.split(r"  +", line.strip()) for line in lines if not line.startswith("unfinished")]
    return done.code, [[step, *cells] for step, _, *cells in rows], lines[len(rows) :]


def test_table_shows_steps_sizes_reasons_and_metrics(here):
    assert table(here) == (
        0,
        [
            ["5", "1.5 kB", "best", "verified", "0.2500", "0.9000"],
            ["10", "1.5 kB", "-", "verified", "0.2500", "0.8000"],
            ["15", "1.5 kB", "newest", "verified", "-", "-"],
        ],
        [],
    )
    changes = [Change("checkpoint.keep_every_steps", None, 10), Change("checkpoint.keep", 1, 2)]
    provenance.add_entry(here, [], None, 15, changes)  # those of the last command count
    assert [row[2] for row in table(here)[1]] == ["best", "newest, every n-th", "newest"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("ckpt-10.index", "y" * 10, "the content of ckpt-10.index has changed"),
        ("ckpt-10.json", "{", "its marker is damaged"),
    ],
)
def test_damaged_checkpoint_is_reported_with_exit_code_1(here, name, content, problem):
    (here / "checkpoints" / name).write_text(content)
    code, rows, _ = table(here)
    assert code == 1
    assert [row[3] for row in rows] == ["verified", f"DAMAGED: {problem}", "verified"]


def test_checkpoint_removed_meanwhile_is_not_damage(here, monkeypatch):
    verify = checkpoint_marker.verify

    def slow(directory, step):
        if step == 5:
            checkpoint_marker.remove(directory, 5)
        return verify(directory, step)

    monkeypatch.setattr(checkpoint_marker, "verify", slow)
    code, rows, _ = table(here)
    assert (code, [row[0] for row in rows]) == (0, ["10", "15"])
