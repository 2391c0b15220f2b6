"""The watchdog: which process is silent for too long, and which one hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.cluster.messages import Phase, Progress
from trainer.cluster.spec import ProcessId
from trainer.config.schema import Watchdog
from trainer.launch import watchdog
from trainer.launch.processes import WorkerProcess
from trainer.launch.watchdog import Heartbeat, ProcessSnapshot, Watch, examine, find_hung

CHIEF = ProcessId("worker", 0)
WORKER = ProcessId("worker", 1)
PS = ProcessId("ps", 0)
HEADER = "Current thread 0x1 (most recent call first):\n"
WAITING = f'{HEADER}  File "/x/trainer/engine/process_group.py", line 9 in sums\n'
WORKING = f'{HEADER}  File "/x/own.py", line 9 in helper\n'


@pytest.fixture
def watch():
    return Watch(Watchdog(stall_secs=3, compile_secs=40, evaluate_secs=50, save_secs=60))


@pytest.mark.parametrize(
    ("phase", "allowed"), [("train", 3), ("compile", 40), ("evaluate", 50), ("save", 60)]
)
def test_each_phase_has_its_own_allowance(watch, phase, allowed):
    watch.begin(CHIEF, 0)
    assert watch.alarm() == 40  # it imports
    watch.update(CHIEF, Phase(phase, 1), 10)
    assert watch.alarm() == 10 + allowed
    watch.update(CHIEF, Progress(2, 9, 0.0, None, {}), 11)
    assert watch.alarm() == 11 + allowed


def test_process_that_joins_is_not_watched(watch):
    watch.begin(CHIEF, 0)
    assert not watch.has_begun(CHIEF)
    watch.update(CHIEF, Phase("join", 0), 0)
    assert watch.alarm() == float("inf")
    assert not watch.has_begun(CHIEF)
    watch.update(CHIEF, Phase("start", 0), 0)
    assert watch.has_begun(CHIEF)


def test_earliest_alarm_counts_and_all_can_be_renewed(watch):
    for now, process_id in enumerate((CHIEF, WORKER)):
        watch.begin(process_id, now)
        watch.update(process_id, Phase("train", 0), now)
    assert watch.alarm() == 3
    watch.renew(3)
    assert watch.alarm() == 6
    watch.end(CHIEF)
    assert watch.alarm() == 6
    watch.end(WORKER)
    assert watch.alarm() == float("inf")


def snapshot(step, at, stacks="", phase="train", is_stopped=False):
    return ProcessSnapshot(Heartbeat(phase, step, at), is_stopped, stacks)


@pytest.mark.parametrize(
    ("snapshots", "hung"),
    [
        ({CHIEF: snapshot(5, 0), WORKER: snapshot(9, 99, is_stopped=True)}, WORKER),
        ({CHIEF: snapshot(5, 0, WAITING), WORKER: snapshot(5, 1, WORKING)}, WORKER),
        ({CHIEF: snapshot(5, 1, WAITING), WORKER: snapshot(4, 2, WAITING)}, WORKER),
        ({CHIEF: snapshot(5, 1), WORKER: snapshot(5, 0)}, WORKER),
        ({CHIEF: snapshot(5, 1), PS: snapshot(0, 99, phase="serve")}, CHIEF),
        ({CHIEF: snapshot(5, 1), PS: snapshot(0, 0, phase="join")}, CHIEF),
    ],
    ids=[
        "stopped",
        "does not wait",
        "behind",
        "silent first",
        "a server is well",
        "who joins is not in question",
    ],
)
def test_hung_process_is_found(snapshots, hung):
    assert find_hung(snapshots, now=100.0) == hung


PROGRAM = """
import os, sys, threading
from trainer.cluster.signals import Signals
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
        with log.open("ab") as opened:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                cwd=ROOT / "trainer",
            )
        self.process.stdout.readline()
        self.pid = self.process.pid
        self.signal = self.process.send_signal

    is_stopped = WorkerProcess.is_stopped


ROOT = Path(watchdog.__file__).parents[2]


@pytest.mark.parametrize("file", watchdog._WAITING_FILES)
def test_files_in_which_processes_wait_exist(file):
    assert (ROOT / file).is_file()


def test_stacks_are_read_from_the_end_of_a_log(tmp_path):
    log = tmp_path / "worker-0.log"
    log.touch()
    os.truncate(log, 1 << 40)  # more than anybody can read
    process = Process(log)
    try:
        _, stacks = examine({CHIEF: process}, {CHIEF: log})
        assert "in helper" in stacks[CHIEF]
    finally:
        process.process.kill()
        process.process.communicate()
