"""Kills from outside at random moments: the run ends like the straight one.

The moments are of the clock: within steps, reports, evaluations, saves, restores and traces. The
memory that the supervisor keeps shows when a step is reached. `STEADFAST_KILLS_SEED=<seed>` draws
other moments.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.processes import (
    OPTIONS,
    TIMEOUT_SECS,
    final_variables,
    finished,
    log,
    only_run,
    start,
    wait_until,
    worker_pids,
)
from tests.support.training import assert_same_bits
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.state_memory import StateMemory

SEED = int(os.environ.get("STEADFAST_KILLS_SEED", "30"))
STEPS = 120
RUN = [
    *OPTIONS, f"train.steps={STEPS}", "summary.every_steps=1", "restart.max_restarts=40",
    "evaluate.every_steps=20", "checkpoint.every_steps=15", "evaluate.every_epochs=null",
    "callbacks=early_stopping", "callbacks.early_stopping.patience=99",
    # A standby's processes would be taken for those that train: they have the same logs.
    "restart.standby=never",
]  # fmt: skip
LAYOUTS = {
    "one_device": ["strategy=one_device", "checkpoint.memory_every_steps=1"],
    "mirrored": [
        "strategy=mirrored", "strategy.virtual_devices=2", "checkpoint.memory_every_steps=1",
    ],
    "two_workers": ["strategy=multi_worker", "strategy.workers=2"],
}  # fmt: skip
_START_SECS = 3.0  # within which a start is killed
_STEP_SECS = 0.05


class Fire:
    """A command whose processes are killed.

    Attributes:
        output: what it has printed, when it has ended.
        kills: (victim, step that was reached) of each moment.
    """

    def __init__(self, directory, *overrides):
        self.output = ""
        self.kills = []
        self._directory = directory
        self._command = start(directory, *overrides)
        self._memories = {}
        self._inodes = set()
        self._dead = set()

    def reached(self):
        """Return the last step that a process is known to have reached."""
        for file in Path(f"/proc/{self._command.pid}/fd").iterdir():
            if file.name not in self._memories and is_memory(file):
                self._memories[file.name] = StateMemory(os.open(file, os.O_RDWR))
                self._inodes.add(file.stat().st_ino)
        return max((memory.reached for memory in self._memories.values()), default=-1)

    def wait_for(self, condition):
        return wait_until(condition, self._command, pause_secs=0.005)

    def living(self):
        """Return the workers of an attempt of which none has been killed, by name."""
        pids = worker_pids(self._directory)
        return pids if self._dead.isdisjoint(pids.values()) else {}

    def kill(self, draw):
        """Kill a worker of the living, when there are some."""
        pids = self.wait_for(self.living)
        victim = draw.choice(sorted(pids))
        self.kills.append((victim, self.reached()))
        os.kill(pids[victim], signal.SIGKILL)
        self._dead.update(pids.values())

    def end(self):
        """Wait for the end; check that nothing is left."""
        self.output = "".join(self._command.communicate(timeout=TIMEOUT_SECS))
        assert self._command.returncode == 0, self.output
        self.close()
        self.assert_nothing_left()

    def assert_nothing_left(self):
        files = Path("/proc").glob("[0-9]*/fd/*")
        assert [file for file in files if is_memory(file, self._inodes)] == []
        assert worker_pids(self._directory) == {}

    def close(self):
        """Kill the supervisor, unless it has ended; its workers end with it."""
        self._command.kill()
        self._command.wait()
        while self._memories:
            self._memories.popitem()[1].close()


def is_memory(file, inodes=None):
    """Return whether a descriptor in /proc is a memory of a run, one of these if they are given."""
    try:
        is_one = os.readlink(file).startswith("/memfd:steadfast-")
        return is_one and (inodes is None or file.stat().st_ino in inodes)
    except OSError:  # it has been closed, or is another user's
        return False


def run_under_fire(directory, number, draw, *overrides):
    """Run a command of which a process is killed at each of `number` moments."""
    fire = Fire(directory, *overrides)
    try:
        for step in sorted(draw.sample(range(1, STEPS), number)):
            # In the start that the last kill has caused, or after a step.
            in_start = fire.kills and draw.random() < 0.25
            delay = draw.uniform(0, _START_SECS if in_start else _STEP_SECS)
            if not in_start:
                fire.wait_for(lambda step=step: fire.reached() >= step)
            end = time.monotonic() + delay
            fire.wait_for(lambda end=end: fire.reached() and time.monotonic() >= end)
            fire.kill(draw)
        fire.wait_for(lambda: fire.reached() > fire.kills[-1][1])
        fire.end()
    finally:
        fire.close()
    return fire


def assert_like_straight(run_dir, expected):
    assert log(run_dir) == log(expected)
    assert committed_steps(run_dir / "checkpoints") == committed_steps(expected / "checkpoints")
    for name in ("step", "metrics", "best"):
        results = [json.loads((x / "result.json").read_text())[name] for x in (run_dir, expected)]
        assert results[0] == results[1]
    assert_same_bits(final_variables(run_dir), final_variables(expected))


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(x, marks=pytest.mark.slow if x == "two_workers" else pytest.mark.long)
        for x in LAYOUTS
    ],
)
def test_run_whose_workers_are_killed_ends_like_the_straight_one(tmp_path, layout):
    draw = random.Random(f"{SEED}-{layout}")
    options = [*RUN, *LAYOUTS[layout]]
    fire = run_under_fire(tmp_path, 3, draw, *options)
    print(f"STEADFAST_KILLS_SEED={SEED}: {layout} {fire.kills}")
    print(fire.output)
    lines = [line for line in fire.output.splitlines() if line.startswith("Continuing from")]
    assert all(" (memory of " in line for line in lines), lines
    run_dir = only_run(tmp_path)
    assert_like_straight(run_dir, finished(*options))
