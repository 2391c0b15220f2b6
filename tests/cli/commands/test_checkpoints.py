"""`python train.py checkpoints <run>`: the checkpoints of a run, verified."""

from pathlib import Path

import pytest

from tests.support.command_line import run_apart, run_here
from trainer import main
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
        checkpoint_marker.commit(
            directory, step, {"loss": 0.25, "accuracy": accuracy} if accuracy else None
        )
    return run.path


def table(path):
    """Return the exit code, the rows without their times, and the text after the table."""
    done = run_here("checkpoints", str(path))
    assert done.err == ""
    head, *lines = done.out.splitlines()
    assert head.split() == ["step", "saved", "size", "kept", "as", "metrics", "files"]
    cells = [
        [cell for cell in line.split("  ") if cell]
        for line in lines
        if not line.startswith("unfinished")
    ]
    return (
        done.code,
        [[cell.strip() for cell in row if ":" not in cell or "DAMAGED" in cell] for row in cells],
        lines[len(cells) :],
    )


def test_table_shows_steps_sizes_reasons_and_metrics(here):
    assert table(here) == (
        0,
        [
            ["5", "1.5 kB", "best", "loss 0.2500, accuracy 0.9000", "verified"],
            ["10", "1.5 kB", "-", "loss 0.2500, accuracy 0.8000", "verified"],
            ["15", "1.5 kB", "newest", "-", "verified"],
        ],
        [],
    )


def test_retention_settings_of_last_command_count(here):
    provenance.add_entry(
        here,
        [],
        None,
        15,
        [Change("checkpoint.keep_every_steps", None, 10), Change("checkpoint.keep", 1, 2)],
    )
    assert [row[2] for row in table(here)[1]] == ["best", "newest, every n-th", "newest"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            lambda folder: (folder / "ckpt-10.index").write_bytes(b"y" * 10),
            "the content of ckpt-10.index has changed",
        ),
        (lambda folder: (folder / "ckpt-10.json").write_text("{"), "its marker is damaged"),
    ],
)
def test_damaged_checkpoint_is_reported_with_exit_code_1(here, damage, problem):
    damage(here / "checkpoints")
    code, rows, _ = table(here)
    assert code == 1
    assert [row[-1] for row in rows] == ["verified", f"DAMAGED: {problem}", "verified"]


def test_unfinished_files_are_not_damage(here):
    (here / "checkpoints" / "ckpt-20.index").touch()
    code, rows, (line,) = table(here)
    assert (code, len(rows)) == (0, 3)
    assert line == (
        "unfinished: ckpt-20.index; being written now, or left by a kill: the next "
        "save removes them"
    )


def test_checkpoint_removed_meanwhile_is_not_damage(here, monkeypatch):
    verify = checkpoint_marker.verify

    def slow(directory: Path, step: int) -> str | None:
        if step == 5:
            checkpoint_marker.remove(directory, 5)
        return verify(directory, step)

    monkeypatch.setattr(checkpoint_marker, "verify", slow)
    code, rows, _ = table(here)
    assert (code, [row[0] for row in rows]) == (0, ["10", "15"])


def test_command_needs_no_worker_and_no_tensorflow(here):
    assert not main._will_train(["checkpoints", str(here)])
    assert main._will_train(["seed=1"])
    done = run_apart("checkpoints", str(here.absolute()), cwd=here.parent)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 4
