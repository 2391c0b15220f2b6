"""Who is put under fire: how each is started, and which of its processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from benchmarks.fire.job import Job
from benchmarks.harness import ROOT
from tests.support.processes import OWN_SERVER, worker_pids
from trainer.cluster import discovery, spec

_LIFE_SECS = 3600


@dataclass(frozen=True)
class Contender:
    """A way to train that is started again whenever one of its processes has ended.

    Attributes:
        title: for people.
        setting: when it saves, for people.
        every_epoch: whether it saves at the end of each epoch, not every so many steps.
    """

    title: str
    setting: str
    every_epoch: bool = False

    def start(self, job: Job, processes: int, log: IO[bytes]) -> list[subprocess.Popen[bytes]]:
        """Start the training, or continue it; the first process is the one that ends it."""
        raise NotImplementedError

    def victims(self, job: Job, started: Sequence[subprocess.Popen[bytes]]) -> list[int]:
        """Return the living processes of which one may be killed."""
        return [process.pid for process in started if process.poll() is None]


@dataclass(frozen=True)
class Peer(Contender):
    """A module beside this one: a process for each worker, started together.

    Attributes:
        module: its name.
    """

    module: str = ""

    def start(self, job: Job, processes: int, log: IO[bytes]) -> list[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", f"benchmarks.fire.{self.module}", job.to_json()]
        if processes == 1:
            return [_start(command, log, {})]
        workers = [spec.ProcessId("worker", index) for index in range(processes)]
        clusters = discovery.local_clusters(workers)
        return [_start(command, log, {"TF_CONFIG": cluster.tf_config()}) for cluster in clusters]


@dataclass(frozen=True)
class Steadfast(Contender):
    """`python train.py`, which restarts its workers itself.

    Attributes:
        kills_command: whether the command is killed, and started again; otherwise its workers are.
    """

    kills_command: bool = False

    def start(self, job: Job, processes: int, log: IO[bytes]) -> list[subprocess.Popen[bytes]]:
        overrides = [
            "strategy=one_device"
            if processes == 1
            else f"strategy=multi_worker strategy.workers={processes}",
            f"runs_dir={job.folder}/runs",
            "model=tutorial_cnn",
            f"dataset=mnist dataset.path={job.data}",
            "optimizer=rmsprop optimizer.learning_rate=0.001",
            f"batch.global_size={job.batch_size}",
            f"train.steps={job.steps} train.epochs=null evaluate.every_epochs=null",
            f"checkpoint=every_50_steps checkpoint.every_steps={job.save_every}",
            "restart.backoff_secs=0 restart.max_restarts=1000000",
            f"task._target_=benchmarks.fire.steadfast.Recorded +task.folder={job.folder}",
        ]
        command = [sys.executable, "train.py", *" ".join(overrides).split()]
        return [_start(command, log, OWN_SERVER)]

    def victims(self, job: Job, started: Sequence[subprocess.Popen[bytes]]) -> list[int]:
        if self.kills_command:
            return super().victims(job, started)
        return sorted(worker_pids(Path(job.folder, "runs")).values())


def _start(command: list[str], log: IO[bytes], more: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process of a contender, which ends by itself in an hour, whatever happens here."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environment |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment | {"CUDA_VISIBLE_DEVICES": "-1"} | more,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(signal.alarm, _LIFE_SECS),
    )


CONTENDERS: dict[str, Contender] = {
    "steadfast": Steadfast("Steadfast", "every 50 steps"),
    "fit": Peer("Keras fit, BackupAndRestore", "every 50 steps", module="fit"),
    "fit_epoch": Peer("Keras fit, BackupAndRestore", "every epoch (default)", True, module="fit"),
    "orbit": Peer("Orbit, CheckpointManager", "every 50 steps", module="orbit"),
    "tutorial": Peer("TensorFlow's tutorial", "every 50 steps", module="tutorial"),
    "command": Steadfast("Steadfast, the command is killed", "every 50 steps", kills_command=True),
}
ALONE = {"orbit", "command"}
"""Contenders that are run with one process only."""
