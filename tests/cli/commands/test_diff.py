"""`python train.py diff <run> <run>`: the keys and final variables in which two runs differ."""

import os
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from trainer.runs import provenance
from trainer.runs.checkpoint_marker import commit
from trainer.runs.identity import Change


def test_differing_keys_are_aligned(make):
    a = make("name=a")
    b = make("name=b", "optimizer.learning_rate=0.5", "train.epochs=null", "train.steps=20")
    done = run_here("diff", a, b)
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        f"key                      {Path(a).name}  {Path(b).name}",
        "name                     a               b",
        "train.steps              null            20",
        "train.epochs             30              null",
        "optimizer.learning_rate  0.001           0.5",
    ]
    provenance.add_entry(Path(a), [], None, None, [Change("train.epochs", 30, 7)])
    assert run_here("diff", a, b).out.splitlines()[3].split() == ["train.epochs", "7", "null"]
    other = make("name=a", "strategy=multi_worker", "strategy.workers=3", "fault=nan_at_30")
    assert [line.split() for line in run_here("diff", a, other).out.splitlines()[2:]] == [
        ["strategy", "one_device", "multi_worker"],
        ["strategy.workers", "null", "3"],
        ["fault", "null", "nan_at_30"],
    ]


def save(run, crc32):
    """Commit a checkpoint of step 5 with one weight, which nobody can read."""
    folder = Path(run, "checkpoints")
    folder.mkdir(exist_ok=True)
    Path(folder, "ckpt-5.index").touch()
    commit(folder, 5, None, {"models/weight": {"crc32": crc32}})


@pytest.mark.slow
def test_variables_of_the_last_common_step_are_compared(make):
    a, b = make("name=a"), make("name=b")
    save(a, 1)
    assert len(run_here("diff", a, b).out.splitlines()) == 2
    save(b, 1)
    done = run_here("diff", a, b)
    assert done.out.splitlines()[-1] == "All 1 variables of step 5 are equal bit for bit."
    save(b, 2)
    done = run_here("diff", a, b)
    assert done.code == 1
    assert done.out.splitlines()[-1] == "1 of 1 variables of step 5 differ."


def test_newest_two_runs_are_compared_unless_they_are_named(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [make(f"name={name}", "runs_dir=runs", f"seed={name}") for name in "123"]
    for position, path in enumerate(paths):
        for file in Path(path).iterdir():
            os.utime(file, (position, position))
    assert run_here("diff").out.splitlines()[0].split() == [
        "key",
        *(Path(path).name for path in paths[1:]),
    ]
    assert run_here("diff", paths[0]).err.startswith("error: diff compares two runs, not 1; ")
    for path in paths[1:]:
        Path(path, "config.yaml").unlink()
    assert run_here("diff").err.startswith("error: diff needs two runs in runs; ")
