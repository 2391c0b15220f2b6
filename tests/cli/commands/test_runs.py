"""`python train.py runs`: the runs in a folder with their status."""

import contextlib
import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from tests.support.terminal import FakeTerminal
from trainer.cli.commands import runs as runs_command
from trainer.cli.compose import compose
from trainer.runs import checkpoint_marker, provenance
from trainer.runs.directory import open_run
from trainer.runs.status import record_failure


def make(name, age_secs, *overrides, step=0, result=None, why=None, metrics=None, total=20):
    """Return a run whose last activity was `age_secs` seconds ago."""
    run = open_run(
        compose([f"name={name}", "train.epochs=null", "train.steps=20", *overrides]), [], None
    )
    (run.path / "checkpoints").mkdir()
    if total:
        provenance.update(run.path, num_replicas=1, total_steps=total)
    if step:
        checkpoint_marker.commit(run.path / "checkpoints", step, metrics)
    if result:
        (run.path / "result.json").write_text(
            json.dumps({"step": 20, "metrics": result, "train": {"steps": 20, "epochs": None}})
        )
    if why:
        record_failure(run.path, why)
    set_age(run.path, age_secs)
    return run


def set_age(path, age_secs):
    at = time.time() - age_secs
    for file in path.iterdir():
        os.utime(file, (at, at))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(here):
    """Return runs in every state, by name."""
    created = {
        "done": make("done", 7300, result={"loss": 0.5, "accuracy": 0.75}),
        "failed": make(
            "failed", 605, step=5, metrics={"loss": 0.25, "accuracy": 0.875}, why="ValueError: no"
        ),
        "stopped": make("stopped", 200_000, step=10, metrics={"loss": 0.0001}),
        "new": make("new", 125, total=None),
        "running": make("running", 245, step=15),
    }
    for name, run in created.items():
        if name != "running":
            run.release()
    yield {name: run.path.name for name, run in created.items()}
    created["running"].release()


def test_table_shows_runs_the_newest_first(runs):
    (Path("runs") / "sweeps" / "first").mkdir(parents=True)
    (Path("runs") / "notes.txt").touch()
    done = run_here("runs")
    assert (done.code, done.err) == (0, "")
    head, *rows, failure = done.out.splitlines()
    assert head.split() == ["run", "state", "best", "step", "age"]
    assert [re.split(r"  +", row) for row in rows] == [
        [runs["new"], "waiting", "-", "0", "2 min"],
        [runs["running"], "running", "-", "15/20", "4 min"],
        [runs["failed"], "failed", "accuracy 0.8750", "5/20", "10 min"],
        [runs["done"], "done", "accuracy 0.7500", "20/20", "2 h"],
        [runs["stopped"], "stopped", "loss 0.0001", "10/20", "2 d"],
    ]
    assert failure == f"{runs['failed']}: ValueError: no"
    (row,) = run_here("runs", f"runs/{runs['done']}").out.splitlines()[1:]
    assert row.startswith(runs["done"])


def trained(name, age_secs, *overrides, accuracies):
    """Finish a run with an evaluation every 10 steps, which took 75 seconds."""
    run = make(name, age_secs, *overrides, result={"accuracy": accuracies[-1]})
    run.release()
    lines = [
        {"step": 10 * index, "split": "test", "accuracy": accuracy}
        for index, accuracy in enumerate(accuracies, 1)
    ]
    (run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    marks = [
        {"phase": phase, "step": None, "input_secs": 0, "time": time}
        for phase, time in (("begin", 0), ("exit", 75))
    ]
    (run.path / "ledger.jsonl").write_text("".join(f"{json.dumps(mark)}\n" for mark in marks))
    set_age(run.path, age_secs)


def test_table_shows_what_differs_and_fits_the_terminal(here, monkeypatch):
    trained("a", 125, "optimizer.learning_rate=0.25", "model=softmax", accuracies=[0.5, 0.25])
    trained("b", 185, "batch.global_size=64", accuracies=[0.75])
    head, slow, fast = (re.split(r"  +", row) for row in run_here("runs").out.splitlines())
    assert head == ["run", "what differs", "state", "best accuracy", "step", "time", "age"]
    assert slow[1:] == [
        "model=softmax batch=128 lr=0.25", "done", "0.5000 at 10", "20/20", "1:15 min", "2 min",
    ]  # fmt: skip
    assert fast[1] == "model=cnn batch=64 lr=0.001"

    monkeypatch.setenv("COLUMNS", "64")
    with contextlib.redirect_stdout(FakeTerminal()) as out:
        assert runs_command.run([]) == 0
    assert out.getvalue().splitlines()[0].split()[-1] == "state"


def test_json_shows_runs(runs):
    failed, done, *_ = json.loads(run_here("runs", "--json", "--sort=accuracy").out)
    assert (failed["run"], done["run"]) == (f"runs/{runs['failed']}", f"runs/{runs['done']}")
    assert time.time() - 900 < failed["active"] < time.time() - 600
    expected = {"state": "failed", "step": 5, "total_steps": 20, "why": "ValueError: no"}
    assert failed.items() >= {**expected, "metrics": {"loss": 0.25, "accuracy": 0.875}}.items()
