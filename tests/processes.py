"""Real `train.py` processes for tests: hard timeouts, ended by their own id, and a callback that sends signals."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECS = 240

OPTIONS = [
    "model.width=4", "model.batch_norm=true", "model.dropout=0.3", "dataset.crop=1", "train.steps=24", "batch.global_size=16",
    "evaluate.every_steps=4", "checkpoint.every_steps=3", "checkpoint.every_epochs=null", "summary.every_steps=5", "train.ema_decay=0.9",
    "restart.backoff_secs=0",
]  # fmt: skip

SIGNALLER = '''
import json, os, pathlib, threading

from trainer.signals import Signals

requested, request = threading.Event(), Signals.request


def noticed(self, number):
    request(self, number)
    requested.set()


Signals.request = noticed


class Signaller:
    """Sends a signal at each of some evaluations, each once over all attempts: to this worker, or to its supervisor."""

    def __init__(self, *, at: list[int], number: int, to: str = "worker", index: int = 0, record: str = "sent.jsonl") -> None:
        self.at, self.number, self.to, self.record = list(at), number, to, pathlib.Path(record)
        # One of several workers alone.
        self.is_mine = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": %d}}' % index))["task"]["index"] == index

    def on_evaluate(self, step, metrics):
        if not self.is_mine:
            return False
        sent = self.record.read_text().splitlines() if self.record.exists() else []
        if step in self.at and str(step) not in [line.split()[0] for line in sent]:
            with self.record.open("a") as file:
                file.write(f"{step} {os.getpid()}\\n")
            # Training may go on only when the signal has come round: the supervisor passes it on, or dies and takes this worker along.
            os.kill(os.getpid() if self.to == "worker" else os.getppid(), self.number)
            assert requested.wait(30), "no signal came"
            requested.clear()
        return False
'''


def signaller(directory: Path, at: list[int], number: int, to: str = "worker", index: int = 0) -> str:
    """Puts the callback into a user's project and gives the override that selects it."""
    (directory / "signaller.py").write_text(SIGNALLER)
    options = f"at:{json.dumps(at, separators=(',', ':'))},number:{int(number)},to:{to},index:{index}"
    return f"+callbacks.signaller={{_target_:signaller.Signaller,{options}}}"


def start(directory: Path, *overrides: str, **environment: str) -> subprocess.Popen:
    """Starts `train.py` in a directory."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *overrides],
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Waits for the end; gives exit code, stdout and stderr. A process that takes too long is killed."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {TIMEOUT_SECS} s\n{out}\n{err}") from None
    return process.returncode, out, err


def run(directory: Path, *overrides: str) -> tuple[int, str, str]:
    """Runs `train.py` to its end."""
    return finish(start(directory, *overrides))


def wait_gone(pid: int, timeout: float = 20) -> None:
    """Waits until a process that is no child of this one has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], timeout)[0], f"process {pid} is an orphan"
    finally:
        os.close(descriptor)


def only_run(directory: Path) -> Path:
    """Gives the one run directory below `runs/`."""
    (found,) = (directory / "runs").iterdir()
    return found


def final_variables(run_dir: Path) -> dict[str, np.ndarray]:
    """Gives every variable of the newest checkpoint by its key."""
    step = max(int(marker.stem.removeprefix("ckpt-")) for marker in (run_dir / "checkpoints").glob("ckpt-*.json"))
    reader = tf.train.load_checkpoint(str(run_dir / "checkpoints" / f"ckpt-{step}"))
    return {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map() if not name.startswith("_CHECK")}


CLOCK_KEYS = {"examples_per_sec", "input_wait_fraction", "goodput", "memory_mib", "gpu_memory_peak_mib"}


def log(run_dir: Path) -> list[dict]:
    """Gives metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in CLOCK_KEYS} for line in lines]


def curve(run_dir: Path, folder: str, tag: str = "loss") -> list[tuple[int, float]]:
    """Gives (step, value) of a scalar as TensorBoard shows it; `folder`: train or eval."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(run_dir / "events" / folder)).Reload()
    return [(event.step, float(make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(tag)]
