"""The programs that are compared: how each is started, and which of its processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from benchmarks.fire.job import Job
from benchmarks.harness import ROOT
from tests.support.processes import OWN_SERVER, worker_pids
from trainer.cluster import discovery, spec

_LIFE_SECS = 3600
_ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
} | OWN_SERVER


@dataclass(frozen=True)
class Contender:
    """A way to train, which is started again whenever one of its processes has ended.

    Attributes:
        setting: when it saves, for people.
        module: of a peer, next to this one: a process for each worker; None: `train.py`.
        every_epoch: whether it saves at the end of each epoch, not every so many steps.
        kills_command: whether `train.py` itself is killed; otherwise the workers that it started.
    """

    title: str
    setting: str
    module: str | None = None
    every_epoch: bool = False
    kills_command: bool = False

    def start(self, job: Job, processes: int, log: IO[bytes]) -> list[subprocess.Popen[bytes]]:
        """Start the training, or continue it; it is complete when the first process ends well."""
        if self.module is None:
            return [_start(["train.py", *_overrides(job, processes)], log, {})]
        command = ["-m", f"benchmarks.fire.{self.module}", job.to_json()]
        if processes == 1:
            return [_start(command, log, {})]
        workers = [spec.ProcessId("worker", index) for index in range(processes)]
        clusters = discovery.local_clusters(workers)
        return [_start(command, log, {"TF_CONFIG": cluster.tf_config()}) for cluster in clusters]

    def victims(self, job: Job, started: Sequence[subprocess.Popen[bytes]]) -> list[int]:
        """Return the living processes of which one may be killed."""
        if self.module or self.kills_command:
            return [process.pid for process in started if process.poll() is None]
        return sorted(worker_pids(Path(job.folder, "runs")).values())


def _overrides(job: Job, processes: int) -> list[str]:
    layout = f"multi_worker strategy.workers={processes}" if processes > 1 else "one_device"
    text = f"""
        strategy={layout} runs_dir={job.folder}/runs
        model=tutorial_cnn optimizer=rmsprop optimizer.learning_rate=0.001
        dataset=mnist dataset.path={job.data} batch.global_size={job.batch_size}
        train.steps={job.steps} train.epochs=null evaluate.every_epochs=null
        checkpoint=every_50_steps checkpoint.every_steps={job.save_every}
        restart.backoff_secs=0 restart.max_restarts=1000000
        task._target_=benchmarks.fire.steadfast.Recorded +task.folder={job.folder}
    """
    return text.split()


def _start(arguments: list[str], log: IO[bytes], more: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start Python for a contender; it ends by itself in an hour."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=inherited | _ENVIRONMENT | more,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(signal.alarm, _LIFE_SECS),
    )


_STEPS = "every 50 steps"
CONTENDERS = {
    "steadfast": Contender("Steadfast", _STEPS),
    "fit": Contender("Keras fit, BackupAndRestore", _STEPS, "fit"),
    "fit_epoch": Contender("Keras fit, BackupAndRestore", "every epoch", "fit", every_epoch=True),
    "orbit": Contender("Orbit, CheckpointManager", _STEPS, "orbit"),
    "tutorial": Contender("TensorFlow's tutorial", _STEPS, "tutorial"),
    "command": Contender("Steadfast, its command killed", _STEPS, kills_command=True),
}
ALONE = {"fit_epoch", "orbit", "command"}
"""Those that are run with one process only."""


def outcomes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what became of each contender at each interval of kills, over all rounds.

    The useful time of a run is the time of the fastest run of its contender over its own, for an
    uninterrupted run needs no longer than one with kills. That of a run that does not end is 0.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    fastest: dict[tuple[Any, ...], float] = {}
    for row in rows:
        program = row["processes"], row["contender"]
        groups.setdefault((*program, row["kill_every_secs"]), []).append(row)
        if row["is_complete"]:
            fastest[program] = min(row["secs"], fastest.get(program, row["secs"]))
    found = []
    for (processes, contender, every), group in groups.items():
        ended = [row for row in group if row["is_complete"]]
        shares = (row["misplaced_examples"] / row["examples"] for row in ended)
        outcome = {
            "processes": processes,
            "contender": contender,
            "every": every,
            "useful": [
                fastest[processes, contender] / row["secs"] if row["is_complete"] else 0.0
                for row in group
            ],
            "recomputed": max(row["computed_steps"] - row["steps"] for row in group),
            "misplaced": max(shares, default=0),
            "difference": max((row["largest_difference"] for row in ended), default=0),
        }
        found.append(outcome)
    return found
