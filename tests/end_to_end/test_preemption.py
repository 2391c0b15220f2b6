"""Stops and hangs of real processes in every phase: a stop saves or says that it did not."""

import json
import signal
import sys

import pytest

from tests.support.processes import OPTIONS, ROOT, TIMEOUT_SECS, only_run, run, succeed, wait_gone
from tests.support.terminal import in_terminal
from trainer.runs.checkpoint_marker import committed_steps

PROBE = '''
import os, pathlib, signal, threading, time

from trainer.engine.evaluation import evaluator
from trainer.engine.graph.loops import train_loop
from trainer.cluster.signals import Signals

PLACE = os.environ.get("TF_CONFIG", "")
noticed, request = threading.Semaphore(0), Signals.request


def counted(self, number):
    request(self, number)
    noticed.release()


Signals.request = counted


def once(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


class Probe:
    """Sends signals or hangs, once over all attempts, in one phase of one process."""

    def __init__(self, *, phase: str, action: str, number: int = 15, index: int = 0) -> None:
        self.action, self.number = action, number
        if PLACE and f'"index": {index}}}' not in PLACE:
            return
        if phase == "compile":
            self.wrap(train_loop.TrainLoop, "_step")
        elif phase == "evaluate":
            self.wrap(evaluator.SplitEvaluator, "_sums")

    def wrap(self, owner, name):
        original = getattr(owner, name)

        def wrapped(*arguments):
            self.act()
            return original(*arguments)

        setattr(owner, name, wrapped)

    def act(self):
        if not once("acted"):
            return
        pathlib.Path("pid").write_text(str(os.getpid()))
        if self.action == "hang":
            self.hang()
        os.kill(os.getpid(), self.number)
        assert noticed.acquire(timeout=30)

    def hang(self):
        while True:
            time.sleep(3600)

    def on_evaluate(self, step, metrics):
        return False
'''
MULTI = "strategy=multi_worker"
SMALL = ["model=softmax", *(item for item in OPTIONS if not item.startswith(("model", "augment")))]
"""For tests that compare no variables."""


def probe(directory, phase, action, **options):
    """Put the callback into a user's project, and return the override that selects it."""
    (directory / "probe.py").write_text(PROBE)
    listed = "".join(f",{name}:{int(value)}" for name, value in options.items())
    return f"+callbacks.probe={{_target_:probe.Probe,phase:{phase},action:{action}{listed}}}"


@pytest.mark.slow
def test_stop_of_one_worker_while_compiling_stops_both(tmp_path):
    probed = probe(tmp_path, "compile", "stop", index=1)
    code, out, err = run(tmp_path, *SMALL, MULTI, probed)
    assert code == 143, out + err
    assert "SIGTERM to worker-1: saving, then exiting" in out
    succeed(tmp_path, *SMALL, MULTI, probed)


@pytest.mark.slow
def test_second_ctrl_c_exits_at_once_without_damage(tmp_path):
    probed = probe(tmp_path, "evaluate", "hang")

    def num_interrupts(text):
        is_hung = (tmp_path / "pid").exists() and bool(
            committed_steps(only_run(tmp_path) / "checkpoints")
        )
        return is_hung + (is_hung and "again exits" in text)

    code, text = in_terminal(
        [sys.executable, str(ROOT / "train.py"), *SMALL, "train.steps=6", probed],
        tmp_path,
        TIMEOUT_SECS,
        interrupt=num_interrupts,
        NO_COLOR="1",
    )
    assert code == 1, text
    wait_gone(int((tmp_path / "pid").read_text()))
    error = "a second SIGINT: left without saving; the newest checkpoint is that of step 3"
    assert f"error: {error}" in text
    assert committed_steps(only_run(tmp_path) / "checkpoints") == [3]


@pytest.mark.slow
def test_hung_process_is_reported_with_stacks_and_the_run_continues(tmp_path):
    watchdog = ["watchdog.evaluate_secs=12", "watchdog.stall_secs=12"]
    probed = probe(tmp_path, "evaluate", "hang", index=1)
    out = succeed(tmp_path, *SMALL, MULTI, *watchdog, probed)
    lines = out.splitlines()
    at = lines.index(
        "warning: worker-1 makes no progress: evaluate at step 4, for 12 s (watchdog.evaluate_secs)"
    )
    assert any("probe.py" in line and line.endswith("in hang") for line in lines[at:])
    assert any(line.startswith("warning: worker-1 made no progress; its log is ") for line in lines)
    assert "it waits for others" in out
    assert "in hang" in (only_run(tmp_path) / "logs" / "worker-1.log").read_text()
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["attempts"] == 2
    wait_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_sigusr1_saves_once_and_training_continues(tmp_path):
    probed = probe(tmp_path, "evaluate", "stop", number=signal.SIGUSR1)
    succeed(tmp_path, *SMALL, "checkpoint.every_steps=1000", "checkpoint.keep=9", probed)
    assert committed_steps(only_run(tmp_path) / "checkpoints") == [4, 24]
