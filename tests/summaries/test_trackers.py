"""MLflow and Weights & Biases, the real libraries offline: a kill loses and doubles no point."""

import os
import signal
import subprocess
import sys
import uuid

import pytest

from tests.support import tracked
from tests.support.processes import ROOT, wait_for_orphans

KILLED = """
import os, pathlib, signal, sys

from trainer.cluster import environment

environment.prepare_environment()
from trainer.cluster.messages import Channel
from trainer.cli.compose import compose
from trainer.summaries.writers.background import open_writers

name, begin, end, ending = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
messages = []
nodes = compose([f"writers=[{name}]"]).writers
writers = open_writers(nodes, pathlib.Path("run-1"), begin, Channel(messages.append))
for writer in writers:
    writer.hyperparameters({"model.width": 7})
for step in range(begin + 1, end + 1):
    for writer in writers:
        writer.scalars("train", step, {"loss": 1 / step, "epoch": 0})
        if step % 2 == 0:
            writer.scalars("test", step, {"loss": 2 / step})
for writer in writers:
    # The kill comes after the tracker has everything.
    writer._call(lambda writer: writer.flush(), wait=True)
if ending == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
for writer in writers:
    writer.close()
assert messages == [], messages
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
    wait_for_orphans(mark, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "read"), [("mlflow", tracked.of_mlflow), ("wandb", tracked.of_wandb)]
)
def test_tracker_has_every_point_once_after_a_kill(tmp_path, attempt, name, read):
    pytest.importorskip(name)
    run_dir = tmp_path / "run-1"
    assert attempt(name, 0, 5, "kill") == -signal.SIGKILL
    run_id = (run_dir / f"{name}_run_id").read_text()
    assert attempt(name, 3, 6, "close") == 0
    assert (run_dir / f"{name}_run_id").read_text() == run_id
    assert read(run_dir) == tracked.of_jsonl(run_dir)
    assert read(run_dir)["train/loss"] == [(step, 1 / step) for step in range(1, 7)]
