"""A run of two hosts that share no folder: each is lost once, with its disk; the bits stay."""

import json
import re
import shutil
import signal
import sys

import pytest

from tests.support.hosts import two_hosts
from tests.support.object_stores import S3_READY, S3_SERVER, s3_environment
from tests.support.processes import (
    OPTIONS,
    SIGNALER,
    TIMEOUT_SECS,
    assert_same_run,
    finish,
    finished,
    output_of,
)

ADDRESSES = ("10.78.0.10", "10.78.0.11")
PORT = 23456
S3 = f"{ADDRESSES[0]}:5000"
ENVIRONMENT = {**s3_environment(0), "AWS_ENDPOINT_URL": f"http://{S3}"}
TRAINING = [
    *OPTIONS, "train.steps=12", "checkpoint.every_steps=2", "strategy=multi_worker",
]  # fmt: skip


class Job:
    """The commands of one run on two hosts, each with its own disk."""

    def __init__(self, hosts, directory):
        self._hosts = hosts
        self._directory = directory

    def start(self, index, *overrides, **environment):
        """Start the command of a process."""
        cluster = {"worker": [f"{address}:{PORT}" for address in ADDRESSES]}
        tf_config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        return self._hosts.start(
            index, self._directory, *overrides, "runs_dir=s3://bucket/runs",
            f"store.work_dir={self.disk(index)}", "store.lease_secs=2",
            TF_CONFIG=json.dumps(tf_config), **ENVIRONMENT, **environment,
        )  # fmt: skip

    def disk(self, index):
        """Return the folder that stands for the disk of a host."""
        return self._directory / f"disk-{index}"


def start_server(hosts, directory):
    """Run an S3 server on the first host until the hosts end."""
    hosts.start_program(
        0, directory, sys.executable, "-c", S3_SERVER, "s3.log", "-H", ADDRESSES[0], "-p", "5000"
    )
    ready = hosts.start_program(
        0, directory, sys.executable, "-c", S3_READY, str(TIMEOUT_SECS / 2), **ENVIRONMENT
    )
    assert finish(ready)[0] == 0, (directory / "s3.log").read_text()


@pytest.mark.slow
def test_hosts_without_a_shared_folder_are_lost_and_train_to_the_same_bits(tmp_path):
    (tmp_path / "signaler.py").write_text(SIGNALER)
    # At a step each, after which the host is lost.
    command = [
        *TRAINING,
        *(
            f"+callbacks.lost{index}={{_target_:signaler.Signaler,at:[{step}],"
            f"number:{int(signal.SIGKILL)},to:supervisor,index:{index}}}"
            for index, step in ((1, 4), (0, 8))
        ),
    ]

    def lose(index, process):
        """Wait until a command was killed; start it again on an empty disk."""
        process.communicate(timeout=TIMEOUT_SECS)
        assert process.returncode == -signal.SIGKILL
        shutil.rmtree(job.disk(index))
        return job.start(index, *command)

    with two_hosts() as hosts:
        start_server(hosts, tmp_path)
        job = Job(hosts, tmp_path)
        chief, other = (job.start(index, *command) for index in (0, 1))
        other = lose(1, other)
        chief = lose(0, chief)
        ended = [finish(process) for process in (chief, other)]
        for code, out, err in ended:
            assert code == 0, out + err
        origins = [line for line in ended[1][1].splitlines() if line.startswith("Continuing from")]
        assert [re.sub(r"step \d+|,.*", "", line) for line in origins] == [
            "Continuing from  (memory of worker-0)",
            "Continuing from  (memory of worker-1)",
        ]
        # Files of the run are in no folder but the chief's; the other host has a copy of the log.
        assert not list(job.disk(1).rglob("metrics.jsonl"))
        assert list(job.disk(1).rglob("log-copy.jsonl"))
        shutil.rmtree(job.disk(0))
        out = output_of(job.start(0, *command))
        assert "Already finished" in out
        (ended,) = {path.parent for path in job.disk(0).rglob("metrics.jsonl")}
        undisturbed = finished(*TRAINING, "strategy.workers=2")
        assert_same_run(ended, undisturbed)
