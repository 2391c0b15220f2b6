"""The command `status`: the processes of a run as their hosts tell it."""

import json
import os
import time

import pytest

from tests.support.command_line import run_here
from trainer.runs import process_status
from trainer.runs.process_status import HostStatus, ProcessStatus
from trainer.runs.status import record_failure

CLUSTER = ["worker-0", "worker-1"]
RUN = "runs/cnn-digits-1"


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    path = tmp_path / RUN
    (path / "logs").mkdir(parents=True)
    (path / "config.yaml").write_text("{}")
    (path / "run.json").write_text(json.dumps({"total_steps": 40}))
    monkeypatch.chdir(tmp_path)
    return path


def write(run_dir, index, *, age_secs=0, code=None, **process):
    name = f"worker-{index}"
    values = {"name": name, "phase": "train", "step": 12, "quiet_secs": 0.4, **process}
    status = HostStatus(f"node{index}", CLUSTER, [ProcessStatus(**values)], code)
    process_status.write(run_dir, name, status)
    written = time.time() - age_secs
    os.utime(run_dir / "logs" / f"status-{name}.json", (written, written))


def status():
    outcome = run_here("status", RUN)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


def test_status_shows_each_process_of_a_running_job(run_dir):
    write(run_dir, 0, step=14)
    assert "worker-1  -      not started     -    -\n" in status()
    write(run_dir, 1, phase="save", quiet_secs=75.0, host="node7")
    assert status() == (
        "process   host   phase  step    age\n"
        "worker-0  node0  train    14    0 s\n"
        "worker-1  node7  save     12  1 min\n"
        f"{RUN}: running, step 14/40\n"
    )


def test_status_says_which_host_tells_nothing_any_more(run_dir):
    write(run_dir, 0)
    write(run_dir, 1, age_secs=30)
    *_, position, note = status().splitlines()
    assert position == f"{RUN}: running, step 12/40"
    assert note.startswith("worker-1 on node1 no longer reports: it was killed")


def test_status_says_how_a_run_was_stopped_or_failed(run_dir):
    write(run_dir, 0, code=143, end="stopped")
    write(run_dir, 1, code=143, end="stopped")
    *_, worker, position = status().splitlines()
    assert worker.split()[:3] == ["worker-1", "node1", "stopped"]
    assert position == f"{RUN}: waiting, step 0/40 (exit code 143)"
    write(run_dir, 0, code=1, end="failed")
    record_failure(run_dir, "ValueError: no such thing")
    assert f"{RUN}: failed, step 0/40: ValueError: no such thing\n" in status()


def test_newest_run_is_shown_unless_one_is_named(run_dir):
    older = run_dir.with_name("older")
    older.mkdir()
    for file in (older / "config.yaml", older / ".lock"):
        file.touch()
        os.utime(file, (1, 1))
    write(run_dir, 0, code=0)
    assert run_here("status").out.endswith(f"{RUN}: waiting, step 0/40\n")
    assert run_here("checkpoints").out.startswith(
        f"{RUN}, the newest run:\n{RUN} has no checkpoint"
    )
