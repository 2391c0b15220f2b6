"""Sweeps of real processes: killed at any moment, failing, stopped."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import TIMEOUT_SECS, finish, run, start, wait_gone

from trainer.markers import committed

pytestmark = pytest.mark.slow

KILLS, SEED, STEPS = 10, 20261121, 24
SECS = 3 * TIMEOUT_SECS  # for several runs
GRID = [
    "-m", "model=softmax,cnn", "optimizer.learning_rate=0.1,0.03,0.01", f"train.steps={STEPS}", "batch.global_size=32",
    "evaluate.every_steps=6", "checkpoint.every_steps=4", "checkpoint.every_epochs=null", "summary.writers=[jsonl]", "sweep.name=grid",
]  # fmt: skip

NETS = '''
import os

import tensorflow as tf


def net(input_shape, num_classes, *, kind: str = "good"):
    """A model that fails as its kind says; `once`: the first time alone."""
    if kind == "broken" or (kind == "once" and not os.path.exists("tried")):
        open(kind.replace("once", "tried"), "w").close()
        raise RuntimeError("out of luck")
    scale = float("nan") if kind == "diverging" else 1.0
    layers = [tf.keras.Input(input_shape), tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes)]
    return tf.keras.Sequential([*layers, tf.keras.layers.Lambda(lambda x: x * scale)])
'''
OWN = [
    "-m",
    "--config-dir=conf",
    "model=net",
    "batch.global_size=32",
    "sweep.name=own",
    "summary.writers=[jsonl]",
    "restart.max_restarts=0",
]


def sweep(directory: Path, *overrides: str) -> tuple[int, str, str]:
    """Runs a sweep to its end; gives exit code, stdout and stderr."""
    process = start(directory, *overrides)
    try:
        out, err = process.communicate(timeout=SECS)
    finally:
        process.kill()
    return process.returncode, out, err


def summary(directory: Path, name: str = "grid") -> dict[str, bytes]:
    """Gives the files of a sweep's summary."""
    return {path.name: path.read_bytes() for path in (directory / "runs" / "sweeps" / name).iterdir()}


def points(directory: Path, name: str) -> dict[str, dict]:
    """Gives the summary's points by the last of what is varied."""
    return {list(point["varied"].values())[-1]: point for point in json.loads(summary(directory, name)["summary.json"])["points"]}


def runs(directory: Path) -> list[Path]:
    return [path for path in sorted((directory / "runs").glob("*")) if path.name != "sweeps"]


def finished(directory: Path) -> dict[str, tuple]:
    """Gives what finished runs consist of: a training would leave traces in it."""
    found = {}
    for run_dir in runs(directory):
        if (run_dir / "result.json").exists():
            files = [path for path in sorted(run_dir.rglob("*")) if path.is_file() and path.name != ".lock"]
            found[run_dir.name] = tuple((str(path.relative_to(run_dir)), path.read_bytes()) for path in files)
    return found


def saved(directory: Path) -> int:
    """Counts the steps of all points of which there are checkpoints."""
    return sum(max(committed(run_dir / "checkpoints"), default=0) for run_dir in runs(directory))


def marks(directory: Path) -> int:
    """Counts what the runs have noted in their ledgers: it grows with everything that happens."""
    return sum(path.read_bytes().count(b"\n") for path in directory.glob("runs/*/ledger.jsonl"))


def wait_for(process: subprocess.Popen, happened: Callable[[subprocess.Popen], bool]) -> None:
    """Waits until something has happened, or the process has ended."""
    deadline = time.monotonic() + SECS
    while not happened(process) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def descendants(pid: int) -> list[int]:
    """Gives the processes below one."""
    children = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return children + [below for child in children for below in descendants(child)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that nothing happens to, one point at a time."""
    directory = tmp_path_factory.mktemp("straight")
    code, _, err = sweep(directory, *GRID)
    assert (code, err) == (0, "")
    return directory


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project whose model fails on request."""
    directory = tmp_path_factory.mktemp("own")
    (directory / "conf" / "model").mkdir(parents=True)
    (directory / "conf" / "model" / "net.yaml").write_text("# a model that fails on request\n_target_: nets.net\nkind: good  # how\n")
    (directory / "nets.py").write_text(NETS)
    return directory


def test_a_sweep_may_be_killed_at_any_moment(straight: Path, tmp_path: Path) -> None:
    """Two points at a time, killed again and again, come to the same as one at a time that nothing happens to."""
    chosen, before, kills = random.Random(SEED), {}, 0
    for target in sorted(chosen.sample(range(6 * STEPS - 10), KILLS)):
        process = start(tmp_path, *GRID, "sweep.jobs=2")
        wait_for(process, lambda started, target=target: saved(tmp_path) >= target and bool(descendants(started.pid)))
        more = marks(tmp_path) + chosen.randrange(6)
        wait_for(process, lambda started, more=more: marks(tmp_path) >= more)
        left = descendants(process.pid)
        process.kill()
        process.communicate(timeout=SECS)
        kills += process.returncode == -signal.SIGKILL
        for pid in left:
            wait_gone(pid)
        now = finished(tmp_path)
        assert before.items() <= now.items()  # what was finished has not been touched
        before = now
    assert kills == KILLS
    code, _, err = sweep(tmp_path, *GRID, "sweep.jobs=2")
    assert (code, err) == (0, "")
    assert before.items() <= finished(tmp_path).items()
    assert summary(tmp_path) == summary(straight)
    assert [path.name for path in runs(tmp_path)] == [path.name for path in runs(straight)]
    assert len(runs(tmp_path)) == 6


def test_a_point_goes_on_by_itself(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight / "runs", tmp_path / "runs")
    run_dir = next(path for path in runs(tmp_path) if path.name.startswith("softmax"))
    code, out, err = run(tmp_path, f"resume=runs/{run_dir.name}", "train.steps=25")
    assert (code, err) == (0, "")
    assert "Continuing from the checkpoint of step 24." in out
    assert json.loads((run_dir / "run.json").read_text())["argv"][1:] == GRID


def test_one_that_diverges_and_one_that_crashes_do_not_hinder_the_others(own: Path) -> None:
    code, out, err = sweep(own, *OWN, "model.kind=a,diverging,b,broken,c,d", "train.steps=4", "sweep.jobs=2")
    assert code == 1
    found = points(own, "own")
    states = {kind: point["state"] for kind, point in found.items()}
    assert states == {"a": "done", "b": "done", "c": "done", "d": "done", "diverging": "failed", "broken": "failed"}
    assert found["broken"]["why"] == "RuntimeError: out of luck"
    assert "loss" in found["diverging"]["why"]
    assert len(err.splitlines()) == 2
    assert found["broken"]["why"] in err
    assert out.count("model.kind=diverging: ") == 1  # in the table


def test_a_point_that_failed_is_tried_again(own: Path) -> None:
    code, out, err = sweep(own, *OWN, "model.kind=a,once", "train.steps=4", "sweep.on_error=retry")
    assert (code, err) == (0, "")
    assert "(model.kind=once): RuntimeError: out of luck; trying again (1 of 1)" in out
    assert {kind: point["state"] for kind, point in points(own, "own").items()} == {"a": "done", "once": "done"}


def test_a_failure_stops_the_others_after_they_have_saved(own: Path) -> None:
    options = ["train.steps=1000000", "evaluate.every_epochs=null", "evaluate.every_steps=1000000", "sweep.name=stop"]
    code, _, err = sweep(own, *OWN, *options, "model.kind=long,broken,never", "sweep.jobs=2", "sweep.on_error=stop")
    assert code == 1
    found = points(own, "stop")
    assert {kind: point["state"] for kind, point in found.items()} == {"long": "stopped", "broken": "failed", "never": "waiting"}
    assert len(err.splitlines()) == 1


def test_a_request_to_stop_saves_all_points_that_train(tmp_path: Path) -> None:
    options = ["-m", "model=softmax,cnn,mobilenet", "train.steps=1000000", "checkpoint.every_steps=20", "sweep.jobs=2", "sweep.name=long"]
    process = start(tmp_path, *options)
    wait_for(process, lambda started: len({path.parent for path in tmp_path.glob("runs/*/checkpoints/ckpt-*.json")}) == 2)
    left = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, err) == (143, "")
    for pid in left:
        wait_gone(pid)
    found = points(tmp_path, "long")
    assert {model: point["state"] for model, point in found.items()} == {"softmax": "stopped", "cnn": "stopped", "mobilenet": "waiting"}
    assert "SIGTERM: the running points save, then leave" in out
