"""Runs in an object store: killed during uploads, resumed, refused."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import time

import pytest

from tests.support import processes
from tests.support.command_line import run_here
from tests.support.marks import first_only
from tests.support.object_stores import request, s3_environment, s3_server
from trainer.config import addresses
from trainer.runs.checkpoint_marker import committed_steps, verify
from trainer.store import remote_files
from trainer.store.lease import read_manifest
from trainer.store.object_store import open_store

OPTIONS = [
    "model.width=4", "train.steps=120", "batch.global_size=16", "checkpoint.every_steps=2",
    "checkpoint.every_epochs=null", "summary.every_steps=5", "restart.backoff_secs=0",
    "evaluate.every_steps=30", "evaluate.every_epochs=null",
]  # fmt: skip
DEADLINE_SECS = 200


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """Run a server; return what commands need in their environment to use it."""
    with s3_server(tmp_path) as port:
        environment = s3_environment(port)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


def remote(tmp_path, *overrides, runs="s3://bucket/runs"):
    return [
        *OPTIONS, f"runs_dir={runs}", f"store.work_dir={tmp_path / 'work'}",
        "store.lease_secs=1", *overrides,
    ]  # fmt: skip


def bring(tmp_path, runs="s3://bucket/runs"):
    """Return the run that a machine with an empty disk gets, and its newest step."""
    folder = tmp_path / "brought"
    shutil.rmtree(folder, ignore_errors=True)
    (name,) = {key.split("/")[0] for key in open_store(runs).names("")}
    store = open_store(f"{runs}/{name}")
    manifest, _ = read_manifest(store)
    assert remote_files.download(store, manifest, folder) == []
    steps = committed_steps(folder / "checkpoints")
    for step in steps:
        assert verify(folder / "checkpoints", step) is None
    return folder, max(steps, default=0)


def committed_here(tmp_path):
    """Return the steps of the checkpoints that this machine has."""
    (name,) = open_store("s3://bucket/runs").folders()
    folder = addresses.work_folder(str(tmp_path / "work"), f"s3://bucket/runs/{name}")
    return committed_steps(folder / "checkpoints")


def check_same(run, expected):
    """Check that two runs have the same metrics and bits."""
    assert processes.log(run) == processes.log(expected)
    values = processes.final_variables(expected)
    actual = processes.final_variables(run)
    assert actual.keys() == values.keys()
    for name, value in values.items():
        assert (actual[name] == value).all(), name


def wait_for_uploads(log, process, count):
    """Return when the server has got that many more objects of checkpoints."""
    begin = log.read_text().count("PUT /bucket/runs/")
    deadline = time.monotonic() + DEADLINE_SECS
    while log.read_text().count("PUT /bucket/runs/") < begin + count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing was uploaded"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", first_only([7, 20]))
def test_run_killed_in_uploads_ends_with_the_bits_of_an_undisturbed_local_run(
    tmp_path, s3, num_kills
):
    chance = random.Random(0)
    newest = num_ahead = 0
    for kill in range(num_kills):
        process = processes.start(tmp_path, *remote(tmp_path), **s3)
        wait_for_uploads(tmp_path / "s3.log", process, chance.randrange(1, 25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        brought, step = bring(tmp_path)
        assert step >= newest
        newest = step
        committed = committed_here(tmp_path)
        assert set(committed[:-1]) <= set(committed_steps(brought / "checkpoints"))
        num_ahead += committed[-1:] > [step]
        if kill % 7 == 3:
            shutil.rmtree(tmp_path / "work")
    assert num_ahead or num_kills < 20, "no kill took the newest checkpoint from the store"
    code, out, err = processes.run(tmp_path, *remote(tmp_path))
    assert code == 0, (out, err)
    assert "Run directory: s3://bucket/runs/" in out
    ended, step = bring(tmp_path)
    assert step == 120
    check_same(ended, processes.finished(*OPTIONS))


def wait_for(condition, what):
    deadline = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def read_until(process, expected):
    """Return what a command has printed as soon as it contains a text."""
    text = ""
    while expected not in text:
        assert select.select([process.stdout], [], [], DEADLINE_SECS)[0], text
        part = os.read(process.stdout.fileno(), 4096).decode()
        assert part, (text, process.communicate())
        text += part
    return text


@pytest.mark.slow
def test_job_started_again_waits_for_its_last_start_on_another_machine(tmp_path, s3, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = remote(tmp_path, "train.steps=60", processes.pause(tmp_path, [30]))
    first = processes.start(tmp_path, *options, SLURM_JOB_ID="1")
    again = None
    try:
        wait_for((tmp_path / "paused-30").exists, "step 30 was not reached")
        disk = f"store.work_dir={tmp_path / 'other'}"
        again = processes.start(tmp_path, *options, disk, SLURM_JOB_ID="1")
        shown = read_until(again, "waiting up to")
        assert f":{first.pid}:" in shown
        (folder,) = open_store("s3://bucket/runs").folders()
        address = f"s3://bucket/runs/{folder}"
        seen = run_here("status", address)
        assert seen.code == 0, seen.err
        # As it was at the last upload.
        assert re.search(rf"^{address}: running, step [0-9]+/60$", seen.out, re.M), seen.out
        assert re.search(rf"^In use by [^:]+:{first.pid}:", seen.out, re.M), seen.out
        first.terminate()
        assert processes.finish(first)[0] == 143
        code, out, err = processes.finish(again)
        assert code == 0, (shown + out, err)
        assert "Continuing from the checkpoint of step 30." in out
    finally:
        for process in (first, again):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    assert bring(tmp_path)[1] == 60
    assert f"{address}: done, step 60/60\n" in run_here("status", address).out
    assert run_here("report", "s3://bucket/runs").out == "1 run: report.html\n"
    text = (tmp_path / "report.html").read_text()
    assert address in text
    assert "cannot be read" not in text


@pytest.mark.slow
def test_run_resumes_by_its_address_on_an_empty_disk_and_is_refused_elsewhere(tmp_path, s3):
    short = ["train.steps=4"]
    code, out, err = processes.run(tmp_path, *remote(tmp_path, *short))
    assert code == 0, (out, err)
    address = out.rpartition("Run directory: ")[2].split()[0]
    shutil.rmtree(tmp_path / "work")
    code, out, err = processes.run(tmp_path, f"resume={address}", "train.steps=6")
    assert code == 0, (out, err)
    assert f"Brought {address}" in out
    assert bring(tmp_path)[1] == 6
    code, out, err = processes.run(tmp_path, *remote(tmp_path, *short), "resume=never")
    assert code == 2
    assert "has a run, which is not moved" in err
    code, _, err = processes.run(tmp_path, "resume=s3://bucket/runs/none")
    assert code == 2
    assert "no run there" in err
    port = int(s3["AWS_ENDPOINT_URL"].rpartition(":")[2])
    assert request(port, "HEAD", "/bucket") == 200
