"""Who is silent for too long, and who of them hangs."""

import os
import signal
import subprocess
import sys

import pytest

from trainer import watchdog
from trainer.cluster import Task
from trainer.schema import Watchdog
from trainer.watchdog import Beat, Sight, Watch, culprit

CHIEF, WORKER, PS = Task("worker", 0), Task("worker", 1), Task("ps", 0)
WAITS = 'Current thread 0x1 (most recent call first):\n  File "/x/trainer/peers.py", line 9 in sums\n'
WORKS = 'Current thread 0x1 (most recent call first):\n  File "/x/own.py", line 9 in helper\n'


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def watch(now):
    return Watch(Watchdog(stall_secs=3, compile_secs=40, evaluate_secs=50, save_secs=60), lambda: now[0])


@pytest.mark.parametrize(
    ("phase", "allowed"), [("train", 3), ("serve", 3), ("wait", 3), ("start", 40), ("compile", 40), ("evaluate", 50), ("save", 60)]
)
def test_each_phase_has_its_allowance(watch, now, phase, allowed):
    watch.begin(CHIEF)
    assert watch.alarm() == (40, CHIEF)  # it imports
    now[0] = 10
    watch.heard(CHIEF, {"kind": "phase", "phase": phase, "step": 1})
    assert watch.alarm() == (10 + allowed, CHIEF)
    now[0] = 11
    watch.heard(CHIEF, {"kind": "progress", "step": 2})
    assert watch.alarm() == (11 + allowed, CHIEF)


def test_who_waits_for_the_others_to_start_is_not_watched(watch, now):
    watch.begin(CHIEF)
    assert not watch.has_begun(CHIEF)
    watch.heard(CHIEF, {"kind": "phase", "phase": "join", "step": 0})
    assert watch.alarm() is None
    assert not watch.has_begun(CHIEF)
    watch.heard(CHIEF, {"kind": "phase", "phase": "start", "step": 0})
    assert watch.has_begun(CHIEF)


def test_the_earliest_alarm_counts_and_all_clocks_can_start_anew(watch, now):
    for task in (CHIEF, WORKER):
        watch.begin(task)
        watch.heard(task, {"kind": "phase", "phase": "train", "step": 0})
        now[0] += 1
    assert watch.alarm() == (3, CHIEF)
    now[0] = 3
    watch.renew()
    assert watch.alarm()[0] == 6
    watch.end(CHIEF)
    assert watch.alarm() == (6, WORKER)
    watch.end(WORKER)
    assert watch.alarm() is None


def sight(step, at, stacks="", phase="train", is_stopped=False):
    return Sight(Beat(phase, step, at), is_stopped, stacks)


@pytest.mark.parametrize(
    ("sights", "hung"),
    [
        ({CHIEF: sight(5, 0), WORKER: sight(9, 99, is_stopped=True)}, WORKER),
        ({CHIEF: sight(5, 0, WAITS), WORKER: sight(5, 1, WORKS)}, WORKER),
        ({CHIEF: sight(5, 1, WAITS), WORKER: sight(4, 2, WAITS)}, WORKER),
        ({CHIEF: sight(5, 1), WORKER: sight(5, 0)}, WORKER),
        ({CHIEF: sight(5, 1), PS: sight(0, 99, phase="serve")}, CHIEF),
        ({CHIEF: sight(5, 1), PS: sight(0, 0, phase="join")}, CHIEF),
    ],
    ids=["stopped", "does not wait", "behind", "silent first", "a server is well", "who joins is not in question"],
)
def test_the_culprit_is_found(sights, hung):
    assert culprit(sights, now=100.0) == hung


PROGRAM = """
import os, sys, threading
from trainer.signals import Signals
Signals(lambda number: None)
def helper():
    print(flush=True)
    sys.stdin.read()
def main():
    helper()
main()
"""


class Process:
    """A process whose standard error is its log."""

    def __init__(self, log):
        with log.open("w") as opened:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=opened, cwd=watchdog.__file__[:-19]
            )
        self.process.stdout.readline()

    is_stopped = watchdog.WorkerProcess.is_stopped
    signal = watchdog.WorkerProcess.signal


def test_a_report_names_the_place_of_everyone_and_shows_the_stacks_of_the_one(watch, now, tmp_path):
    logs = {task: tmp_path / f"{task}.log" for task in (CHIEF, WORKER)}
    processes = {task: Process(log) for task, log in logs.items()}
    try:
        for task, step in ((CHIEF, 8), (WORKER, 7)):
            watch.begin(task)
            watch.heard(task, {"kind": "phase", "phase": "train", "step": step})
        now[0] = 3
        hung, lines = watch.report(processes, logs)
        assert hung == WORKER
        assert lines[:2] == [
            "warning: worker-1 makes no progress: train at step 7, for 3 s (watchdog.stall_secs)",
            "  worker-0: train at step 8, for 3 s",
        ]
        assert [line.rpartition(" ")[2] for line in lines[2:-1]] == ["first):", "helper", "main", "<module>"]
        assert lines[-1] == f"  all stacks: {logs[CHIEF]}, {logs[WORKER]}"
        assert "in helper" in logs[CHIEF].read_text()
        processes[CHIEF].signal(signal.SIGSTOP)
        os.waitid(os.P_PID, processes[CHIEF].process.pid, os.WSTOPPED)  # a signal that was sent may not have arrived
        hung, lines = watch.report(processes, logs)
        assert hung == CHIEF
        assert lines[0].endswith("(watchdog.stall_secs; it is stopped by a signal, and cannot show its stacks)")
    finally:
        for process in processes.values():
            process.process.kill()
            process.process.communicate()
