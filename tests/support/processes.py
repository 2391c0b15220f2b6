"""Real `train.py` processes for tests, with hard timeouts, and a callback that sends signals."""

import functools
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.support.scratch import new_folder
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.ledger import is_clock_name

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECS = 240

OPTIONS = [
    "model.width=4", "model.batch_norm=true", "model.dropout=0.3", "augment.crop=1",
    "train.steps=24", "batch.global_size=16",
    "evaluate.every_steps=4", "checkpoint.every_steps=3", "checkpoint.every_epochs=null",
    "summary.every_steps=5", "train.ema_decay=0.9",
    "restart.backoff_secs=0",
]  # fmt: skip

SIGNALER = '''
import json, os, pathlib, socket, struct, sys, threading

from trainer.cluster.signals import Signals

requested, request = threading.Event(), Signals.request


def noticed(self, number):
    request(self, number)
    requested.set()


Signals.request = noticed


def supervisor():
    """Return the process that made this worker's socket: it need not be the parent."""
    descriptor = int(sys.argv[sys.argv.index("--socket") + 1])
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.unpack("3i", credentials)[0]


class Signaler:
    """Sends a signal to this worker or its supervisor at some evaluations, each once in a run."""

    def __init__(self, *, at: list[int], number: int, to: str = "worker", index: int = 0) -> None:
        self.at, self.number, self.to = list(at), number, to
        self.record = pathlib.Path("sent.jsonl")
        # One of several workers alone.
        tf_config = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": %d}}' % index))
        self.is_mine = tf_config["task"]["index"] == index

    def on_evaluate(self, step, metrics):
        if not self.is_mine:
            return False
        sent = self.record.read_text().splitlines() if self.record.exists() else []
        if step in self.at and str(step) not in [line.split()[0] for line in sent]:
            with self.record.open("a") as file:
                file.write(f"{step} {os.getpid()}\\n")
            # Training must wait for the signal: the supervisor passes it on, or dies and this
            # worker with it.
            os.kill(os.getpid() if self.to == "worker" else supervisor(), self.number)
            assert requested.wait(30), "no signal came"
            requested.clear()
        return False
'''


def signaler(directory, at, number, to="worker", index=0):
    """Put the callback into a user's project, and return the override that selects it."""
    (directory / "signaler.py").write_text(SIGNALER)
    options = (
        f"at:{json.dumps(at, separators=(',', ':'))},number:{int(number)},to:{to},index:{index}"
    )
    return f"+callbacks.signaler={{_target_:signaler.Signaler,{options}}}"


OWN_SERVER = {"STEADFAST_FORK_SERVER": ""}
"""The environment of a command that has a fork server of its own, as it has outside of tests."""


def start(directory, *overrides, **environment):
    """Start `train.py` in a directory."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *overrides],
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def finish(process):
    """Wait for the end; return exit code, stdout, stderr. A process over its time is killed."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {TIMEOUT_SECS} s\n{out}\n{err}") from None
    return process.returncode, out, err


def output_of(process):
    """Wait for the end, which must be a success; return stdout."""
    code, out, err = finish(process)
    assert code == 0, f"{out}\n{err}"
    return out


def run_program(*command, cwd, env=None):
    """Run any program to its end, which must be a success; return stdout."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def run(directory, *overrides, **environment):
    """Run `train.py` to its end; return exit code, stdout, stderr."""
    return finish(start(directory, *overrides, **environment))


def succeed(directory, *overrides, **environment):
    """Run `train.py` to its end, which must be a success; return stdout."""
    return output_of(start(directory, *overrides, **environment))


@functools.cache
def finished(*overrides):
    """Run `train.py` to its end, once in this process for all tests that compare with it.

    Returns:
        The run directory.
    """
    directory = new_folder()
    succeed(directory, *overrides, PYTHONPATH=str(ROOT))
    return only_run(directory)


def worker_pids(directory):
    """Return the living workers of the runs below a directory: their errors go to their logs."""
    pids = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            log_file = Path(os.readlink(process / "fd" / "2"))
        except OSError:
            continue  # it has ended, or is another user's
        if log_file.parent.name == "logs" and log_file.is_relative_to(directory.resolve()):
            pids[log_file.stem] = int(process.name)
    return pids


def descendants(pid):
    """Return all processes below one; workers are, if it has a fork server of its own."""
    children = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    return children + [pid for child in children for pid in descendants(child)]


def wait_until(condition, *processes, problem="no progress", secs=TIMEOUT_SECS, pause_secs=0.05):
    """Poll until a condition holds, while some processes run; return its value."""
    end = time.monotonic() + secs
    while not (value := condition()):
        for process in processes:
            assert process.poll() is None, finish(process)
        assert time.monotonic() < end, problem
        time.sleep(pause_secs)
    return value


def wait_gone(pid, timeout=20):
    """Wait until a process that is no child of this one has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], timeout)[0], f"process {pid} is an orphan"
    finally:
        os.close(descriptor)


def wait_for_orphans(mark, directory):
    """Wait until no process is left that has a mark in its environment, or works below a folder.

    The environment of a forked worker is that of its server to those who look from outside.
    """
    while living := [*marked(mark), *worker_pids(directory).values()]:
        wait_gone(living[0])


def marked(mark):
    """Return the processes that have a mark in their environment."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                processes.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    return processes


def only_run(directory):
    """Return the one run directory below `runs/`."""
    (run_dir,) = (directory / "runs").iterdir()
    return run_dir


def final_variables(run_dir, step=None):
    """Return every variable of the newest checkpoint, or of that of a step, by its key."""
    import tensorflow as tf

    step = step or committed_steps(run_dir / "checkpoints")[-1]
    reader = tf.train.load_checkpoint(str(run_dir / "checkpoints" / f"ckpt-{step}"))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if not name.startswith("_CHECK")
    }


def assert_same_run(run_dir, other):
    """Compare the variables of two runs bit for bit, and what they have logged."""
    from tests.support.training import assert_same_bits

    assert_same_bits(final_variables(run_dir), final_variables(other))
    assert log(run_dir) == log(other)


CLOCK_KEYS = {
    "examples_per_sec",
    "input_wait_fraction",
    "train_secs",
    "goodput",
    "memory_mib",
    "gpu_memory_peak_mib",
}


def log(run_dir):
    """Return metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            key: value
            for key, value in line.items()
            if key not in CLOCK_KEYS and not is_clock_name(key)
        }
        for line in lines
    ]


def curve(run_dir, split, name="loss"):
    """Return (step, value) of a metric as TensorBoard shows it."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(run_dir / "events")).Reload()
    return [
        (event.step, float(make_ndarray(event.tensor_proto)))
        for event in accumulator.Tensors(f"metrics/{name}/{split}")
    ]
