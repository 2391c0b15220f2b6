"""MLflow and Weights & Biases with the real libraries, offline: a run that is killed goes on there, and no point is lost or doubled."""

import json
import os
import signal
import subprocess
import sys
import uuid
from importlib.machinery import ModuleSpec

import pytest

from tests import tracked
from tests.command_line import run_here
from tests.processes import ROOT
from tests.test_chaos import wait_for_orphans
from trainer import config
from trainer.channel import Channel
from trainer.cli import compose
from trainer.writers.opening import open_writers

KILLED = """
import os, pathlib, signal, sys

from trainer import cluster

cluster.prepare_environment()
from trainer.channel import Channel
from trainer.cli import compose
from trainer.writers.opening import open_writers

name, begin, end, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
told = []
writers = open_writers(compose([f"summary.writers=[{name}]", "model.width=7"]), pathlib.Path("run-1"), begin, Channel(told.append))
for step in range(begin + 1, end + 1):
    for writer in writers:
        writer.scalars("train", step, {"loss": 1 / step, "epoch": 0})
        if step % 2 == 0:
            writer.scalars("test", step, {"loss": 2 / step})
for writer in writers:
    # What is killed has told the tracker all that it had to tell.
    writer._tell(lambda writer: writer.flush(), wait=True)
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
for writer in writers:
    writer.close()
assert told == [], told
os._exit(0)
"""


@pytest.fixture
def attempt(tmp_path):
    (tmp_path / "run-1").mkdir()

    mark = uuid.uuid4().hex

    def write(*arguments):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "STEADFAST_TEST": mark}
        command = [sys.executable, "-c", KILLED, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=env, timeout=120, check=False).returncode

    yield write
    wait_for_orphans(mark)


@pytest.mark.parametrize(("name", "read"), [pytest.param("mlflow", tracked.of_mlflow, marks=pytest.mark.slow), ("wandb", tracked.of_wandb)])
def test_a_run_that_was_killed_goes_on_and_has_every_point_once(tmp_path, attempt, name, read):
    pytest.importorskip(name)
    run_dir = tmp_path / "run-1"
    assert attempt(name, 0, 5, "kill") == -signal.SIGKILL
    known = (run_dir / f"{name}_run_id").read_text()
    assert attempt(name, 3, 6, "close") == 0
    assert (run_dir / f"{name}_run_id").read_text() == known
    assert read(run_dir) == tracked.told(run_dir)
    assert read(run_dir)["train/loss"] == [(step, 1 / step) for step in range(1, 7)]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_cannot_be_written_to_is_a_warning(tmp_path, name):
    pytest.importorskip(name)
    run_dir = tmp_path / "run-1"
    run_dir.mkdir()
    (run_dir / f"{name}_run_id").mkdir()
    said = []
    writers = open_writers(compose([f"summary.writers=[{name},csv]"]), run_dir, 0, Channel(said.append))
    for writer in writers:
        writer.scalars("train", 1, {"loss": 0.5})
        writer.close()
    (line,) = [message["text"] for message in said]
    assert line.startswith(f"warning: {name} cannot be written to ([Errno 21] Is a directory")
    assert line.endswith("); the run goes on without it")
    assert (run_dir / "metrics-train.csv").read_text() == "step,loss\n1,0.5\n"
    assert json.loads((run_dir / "metrics.jsonl").read_text())["step"] == 1


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
@pytest.mark.parametrize("found", [None, ModuleSpec("a_folder", loader=None)], ids=["nothing", "a folder of that name"])
def test_a_tracker_that_is_not_installed_is_said_before_anything_is_written(tmp_path, monkeypatch, name, found):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "find_spec", lambda package: found)
    outcome = run_here(f"summary.writers=[jsonl,{name}]")
    assert outcome.code == 2, outcome
    assert outcome.err == f'error: summary.writers names {name}, which is not installed; pip install "steadfast[{name}]"\n'
    assert list(tmp_path.iterdir()) == []
