"""A run of two hosts that share no folder: each is lost once, with its disk; the bits stay."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.hosts import Hosts, two_hosts
from tests.support.object_stores import S3_READY, S3_SERVER, s3_environment
from tests.support.processes import (
    OPTIONS,
    ROOT,
    SIGNALER,
    TIMEOUT_SECS,
    final_variables,
    finish,
    log,
    only_run,
    pause,
    run,
)
from tests.support.training import assert_same_bits
from trainer.runs.checkpoint_marker import committed_steps

ADDRESSES = ("10.78.0.10", "10.78.0.11")
PORT = 23456
S3 = f"{ADDRESSES[0]}:5000"
ENVIRONMENT = {**s3_environment(0), "AWS_ENDPOINT_URL": f"http://{S3}"}
TRAINING = [
    *OPTIONS, "train.steps=12", "checkpoint.every_steps=2", "strategy=multi_worker",
    "strategy.communication=ring",
]  # fmt: skip
# At a step each, after which the host has to be lost.
LOST = {1: 4, 0: 8}


REFUSE = """
from trainer.store import remote_files
from trainer.store.object_store import StoreError, open_store

upload = remote_files.upload_checkpoint


def refuse(store, staged, step, folder):
    if step > 2:
        raise StoreError("access denied", is_temporary=False)
    upload(store, staged, step, folder)


remote_files.upload_checkpoint = refuse
"""
"""What Python runs first in a process whose store takes no checkpoint after step 2."""


SLOW = """
import pathlib, time

from trainer.store import remote_files

upload = remote_files.upload_checkpoint


def slow(store, staged, step, folder):
    time.sleep(5)
    upload(store, staged, step, folder)
    pathlib.Path(f"uploaded-{step}").touch()


remote_files.upload_checkpoint = slow
"""
"""What Python runs first in a process whose store is slow."""

NEWEST = """
import sys

from trainer.store.lease import read_manifest

manifest = read_manifest(open_store(sys.argv[1]))[0]
print(max(manifest.checkpoints), manifest.is_free)
"""
"""A program that prints the newest step at an address, and whether the lease was given up."""


class Job:
    """The commands of one run on two hosts, each with a disk of its own.

    Args:
        hosts: the hosts.
        directory: where the commands run.
        environment: how they find the store.
    """

    def __init__(self, hosts: Hosts, directory: Path, environment: dict[str, str]) -> None:
        self._hosts = hosts
        self._directory = directory
        self._environment = environment
        (directory / "signaler.py").write_text(SIGNALER)

    def start(self, index: int, *overrides: str) -> subprocess.Popen[str]:
        """Start the command of a process; its supervisor is killed at a step, once."""
        cluster = {"worker": [f"{address}:{PORT}" for address in ADDRESSES]}
        task = {"type": "worker", "index": index}
        signalers = [
            f"+callbacks.lost{lost}={{_target_:signaler.Signaler,at:[{step}],"
            f"number:{int(signal.SIGKILL)},to:supervisor,index:{lost},record:lost-{lost}.jsonl}}"
            for lost, step in LOST.items()
        ]
        return self._hosts.start(
            index, self._directory, *TRAINING, *signalers, "runs_dir=s3://bucket/runs",
            f"store.work_dir={self.disk(index)}", "store.lease_secs=2", *overrides,
            TF_CONFIG=json.dumps({"cluster": cluster, "task": task}), **self._environment,
        )  # fmt: skip

    def disk(self, index: int) -> Path:
        """Return the folder that stands for the disk of a host."""
        return self._directory / f"disk-{index}"

    def lose(self, index: int, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Wait until a command was killed; start it again on an empty disk."""
        process.communicate(timeout=TIMEOUT_SECS)
        assert process.returncode == -signal.SIGKILL
        shutil.rmtree(self.disk(index))
        return self.start(index)


def start_server(hosts: Hosts, directory: Path) -> None:
    """Run an S3 server on the first host until the hosts end."""
    hosts.start_program(
        0, directory, sys.executable, "-c", S3_SERVER, "s3.log", "-H", ADDRESSES[0], "-p", "5000"
    )
    ready = hosts.start_program(
        0, directory, sys.executable, "-c", S3_READY, str(TIMEOUT_SECS / 2), **ENVIRONMENT
    )
    assert finish(ready)[0] == 0, (directory / "s3.log").read_text()


def start_both(
    hosts: Hosts, directory: Path, first: str, *overrides: str
) -> list[subprocess.Popen[str]]:
    """Start the commands of both hosts; that of the chief runs some code first."""
    (directory / "first").mkdir(exist_ok=True)
    (directory / "first" / "sitecustomize.py").write_text(first)
    cluster = {"worker": [f"{address}:{PORT}" for address in ADDRESSES]}
    return [
        hosts.start(
            index, directory, *overrides, "runs_dir=s3://bucket/runs",
            f"store.work_dir={directory / f'disk-{index}'}", "restart.max_restarts=0",
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            **ENVIRONMENT,
            **({"PYTHONPATH": f"{directory / 'first'}:{ROOT}"} if index == 0 else {}),
        )
        for index in (0, 1)
    ]  # fmt: skip


@pytest.mark.long
def test_stopped_hosts_leave_when_the_chief_has_uploaded_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    with two_hosts() as hosts:
        start_server(hosts, tmp_path)
        options = [*TRAINING, "checkpoint.every_steps=100", pause(tmp_path, [4])]
        commands = start_both(hosts, tmp_path, SLOW, *options)
        deadline = time.monotonic() + TIMEOUT_SECS
        while not (tmp_path / "paused-4").exists():
            assert all(command.poll() is None for command in commands), map(finish, commands)
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for command in commands:
            command.send_signal(signal.SIGTERM)
        code, out, err = finish(commands[1])
        # A scheduler kills the chief soon after this.
        assert list(tmp_path.glob("uploaded-*")), out + err
        assert code == 143, out + err
        (line,) = [line for line in out.splitlines() if line.startswith("Waiting until the chief")]
        code, out, err = finish(commands[0])
        assert code == 143, out + err
        (run_dir,) = {path.parent for path in (tmp_path / "disk-0").rglob("metrics.jsonl")}
        address = f"s3://bucket/runs/{run_dir.name}"
        assert line.endswith(f" uploaded to {address}.")
        environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        code, out, err = finish(
            hosts.start_program(0, tmp_path, sys.executable, "-c", NEWEST, address, **environment)
        )
        assert out == f"{committed_steps(run_dir / 'checkpoints')[-1]} True\n", err


@pytest.mark.slow
def test_chief_that_cannot_upload_ends_all_hosts_with_its_error(tmp_path: Path) -> None:
    def train(*overrides: str) -> list[tuple[int, str]]:
        """Run the commands of both hosts; return exit code and output of each."""
        commands = start_both(hosts, tmp_path, REFUSE, *overrides)
        return [(code, out + err) for code, out, err in map(finish, commands)]

    with two_hosts() as hosts:
        start_server(hosts, tmp_path)
        (code, chief), (other_code, _) = train(*TRAINING, "train.steps=4")
        assert (code, other_code) == (1, 0), chief
        assert "the store cannot be written (access denied)" in chief
        (chief_dir,) = {path.parent for path in (tmp_path / "disk-0").rglob("metrics.jsonl")}
        address = f"s3://bucket/runs/{chief_dir.name}"
        for code, text in train(f"resume={address}", "train.steps=6"):
            assert code == 1, text
            assert f"the checkpoint of step 4 is not in {address}" in text


@pytest.mark.slow
def test_hosts_without_a_shared_folder_are_lost_and_train_to_the_same_bits(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        start_server(hosts, tmp_path)
        job = Job(hosts, tmp_path, ENVIRONMENT)
        chief, other = (job.start(index) for index in (0, 1))
        other = job.lose(1, other)
        chief = job.lose(0, chief)
        for process in (chief, other):
            code, out, err = finish(process)
            assert code == 0, out + err
        # Files of the run are in no folder but the chief's.
        assert not list(job.disk(1).rglob("metrics.jsonl"))
        again = job.start(1)
        code, out, err = finish(again)
        assert code == 0, out + err
        shutil.rmtree(job.disk(0))
        code, out, err = finish(job.start(0))
        assert code == 0, out + err
        assert "Already finished" in out
        (ended,) = {path.parent for path in job.disk(0).rglob("metrics.jsonl")}
        undisturbed = tmp_path / "undisturbed"
        undisturbed.mkdir()
        code, out, err = run(undisturbed, *TRAINING, "strategy.workers=2")
        assert code == 0, out + err
        assert_same_bits(final_variables(ended), final_variables(only_run(undisturbed)))
        assert log(ended) == log(only_run(undisturbed))
