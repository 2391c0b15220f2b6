"""Stops and hangs of real processes in every phase: a stop saves or says that it did not."""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import (
    OPTIONS,
    OWN_SERVER,
    ROOT,
    TIMEOUT_SECS,
    descendants,
    final_variables,
    finish,
    finished,
    only_run,
    pause,
    run,
    start,
    wait_gone,
    worker_pids,
)
from tests.support.terminal import in_terminal
from tests.support.training import assert_same_bits

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
        else:
            os.kill(os.getpid(), self.number)
            assert noticed.acquire(timeout=30)
        if self.action == "stop_and_hang":
            self.hang()

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


def markers(run_dir):
    return sorted(
        int(path.stem.removeprefix("ckpt-")) for path in run_dir.glob("checkpoints/ckpt-*.json")
    )


@pytest.mark.slow
def test_stop_of_one_worker_while_compiling_stops_both(tmp_path):
    probed = probe(tmp_path, "compile", "stop", index=1)
    code, out, err = run(tmp_path, *SMALL, MULTI, probed)
    assert code == 143, out + err
    assert "SIGTERM to worker-1: saving, then leaving" in out
    code, out, err = run(tmp_path, *SMALL, MULTI, probed)
    assert code == 0, out + err


LAST_SAVE_AT_3 = ["train.steps=6", "evaluate.every_steps=4"]


def test_second_ctrl_c_exits_at_once_without_damage(tmp_path):
    probed = probe(tmp_path, "evaluate", "hang")
    code, text = in_terminal(
        [sys.executable, str(ROOT / "train.py"), *SMALL, *LAST_SAVE_AT_3, probed],
        tmp_path,
        TIMEOUT_SECS,
        interrupt=lambda text: (tmp_path / "pid").exists() + ("once more leaves" in text),
        NO_COLOR="1",
    )
    assert code == 1, text
    wait_gone(int((tmp_path / "pid").read_text()))
    error = "a second SIGINT: left without saving; the newest checkpoint is that of step 3"
    assert f"error: {error}" in text
    assert markers(only_run(tmp_path)) == [3]


@pytest.mark.slow
def test_process_that_cannot_save_exits_after_the_grace_period_without_damage(tmp_path):
    probed = probe(tmp_path, "evaluate", "stop_and_hang")
    code, out, err = run(tmp_path, *SMALL, *LAST_SAVE_AT_3, "preemption.grace_secs=0.5", probed)
    assert code == 1, out + err
    wait_gone(int((tmp_path / "pid").read_text()))
    error = "left without saving; the newest checkpoint is that of step 3"
    assert f"error: preemption.grace_secs (0.5) are over: {error}" in err
    assert markers(only_run(tmp_path)) == [3]


@pytest.mark.slow
def test_hung_process_is_reported_with_stacks_and_the_run_continues(tmp_path):
    code, out, err = run(
        tmp_path, *SMALL, "watchdog.evaluate_secs=5", probe(tmp_path, "evaluate", "hang")
    )
    assert code == 0, out + err
    lines = out.splitlines()
    at = lines.index(
        "warning: worker-0 makes no progress: evaluate at step 4, for 5 s (watchdog.evaluate_secs)"
    )
    assert "probe.py" in lines[at + 2]
    assert lines[at + 2].endswith("in hang")
    assert any(line.startswith("warning: worker-0 made no progress; its log is ") for line in lines)
    assert "in hang" in (only_run(tmp_path) / "logs" / "worker-0.log").read_text()
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["attempts"] == 2
    wait_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_hung_process_of_two_is_named(tmp_path):
    watchdog = ["watchdog.evaluate_secs=12", "watchdog.stall_secs=12"]
    code, out, err = run(
        tmp_path, *SMALL, MULTI, *watchdog, probe(tmp_path, "evaluate", "hang", index=1)
    )
    assert code == 0, out + err
    assert "warning: worker-1 made no progress" in out
    assert "it waits for others" in out
    wait_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.long
def test_idle_sidecar_is_not_a_stall(tmp_path):
    long = [
        "train.steps=80",
        "checkpoint.every_steps=80",
        "evaluate.every_steps=80",
        "+fault.slow={action:slow,process:chief,delay_secs:0.1}",
        "watchdog.stall_secs=5",
    ]
    code, out, err = run(tmp_path, *SMALL, *long, "evaluate.sidecar=true")
    assert code == 0, out + err
    assert "no progress" not in out


@pytest.mark.slow
def test_sigusr1_saves_once_and_training_continues(tmp_path):
    probed = probe(tmp_path, "evaluate", "stop", number=signal.SIGUSR1)
    code, out, err = run(
        tmp_path, *SMALL, "checkpoint.every_steps=1000", "checkpoint.keep=9", probed
    )
    assert code == 0, out + err
    assert markers(only_run(tmp_path)) == [4, 24]


@pytest.mark.slow
def test_signal_to_all_processes_at_once_stops_the_run_once(tmp_path):
    process = start(tmp_path, *SMALL, MULTI, "train.steps=100000", **OWN_SERVER)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("step 4:"):
        pass
    everyone = [process.pid, *descendants(process.pid)]
    assert set(worker_pids(tmp_path).values()) < set(everyone)
    for pid in everyone:
        os.kill(pid, signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 143, out + err


def storm(generator: random.Random, process) -> None:
    """Send up to six signals to processes of a command, at least one of which is to stop it."""
    targets = [process.pid, *descendants(process.pid)]
    others = [signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM]
    numbers = generator.choices(others, k=generator.randint(0, 5))
    numbers.insert(generator.randint(0, len(numbers)), signal.SIGTERM)
    # The command itself gets the first that stops: a fork server, for one, takes none.
    pids = generator.choices(targets, k=len(numbers))
    pids[numbers.index(signal.SIGTERM)] = process.pid
    for pid, number in zip(pids, numbers, strict=True):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        time.sleep(generator.uniform(0.0, 0.02))


@pytest.mark.long
def test_storms_of_signals_save_each_time_and_the_run_ends_the_same(tmp_path):
    generator = random.Random(5)
    command = [*OPTIONS, "checkpoint.every_steps=1000", pause(tmp_path, [4, 8])]
    for step in (4, 8):
        process = start(tmp_path, *command, **OWN_SERVER)
        wait_for(tmp_path / f"paused-{step}", process)
        storm(generator, process)
        code, out, err = finish(process)
        # A signal may come when the command has said all, and ends it.
        assert code in (130, 143, -signal.SIGINT, -signal.SIGTERM), out + err
        assert markers(only_run(tmp_path))[-1] == step, out + err
    code, out, err = run(tmp_path, *command)
    assert code == 0, out + err
    assert "Continuing from the checkpoint of step 8." in out
    assert_same_bits(final_variables(finished(*OPTIONS)), final_variables(only_run(tmp_path)))


def wait_for(path: Path, process) -> None:
    """Wait until a process has created a file."""
    end = time.monotonic() + TIMEOUT_SECS
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.05)
