"""Kills from outside at random moments: the run ends like the straight one.

The moments are of the clock: within steps, reports, evaluations, saves, restores and traces. The
memory that the supervisor keeps tells when a step is reached. `STEADFAST_KILLS_SEED=<seed>` draws
other moments.
"""

import itertools
import json
import os
import random
import re
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
    wait_gone,
    wait_until,
    worker_pids,
)
from tests.support.training import assert_same_bits
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.state_memory import StateMemory

SEED = int(os.environ.get("STEADFAST_KILLS_SEED", "30"))
STEPS = 240
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
    "four_workers": ["strategy=multi_worker", "strategy.workers=4"],
}  # fmt: skip
_START_SECS = 3.0  # within which a start is killed
_STEP_SECS = 0.05


class Fire:
    """A command whose processes are killed.

    Attributes:
        output: what it has printed, when it has ended.
        kills: (victims, step that was reached) of each moment.
        secs: from each kill to the next new step, unless another kill came before.
    """

    def __init__(self, directory, *overrides):
        self.output = ""
        self.kills = []
        self.secs = []
        self._directory = directory
        self._command = start(directory, *overrides)
        self._memories = {}
        self._inodes = set()
        self._dead = set()
        self._killed_at = None

    def reached(self):
        """Return the last step that a process is known to have reached."""
        for file in Path(f"/proc/{self._command.pid}/fd").iterdir():
            if file.name not in self._memories and is_memory(file):
                self._memories[file.name] = StateMemory(os.open(file, os.O_RDWR))
                self._inodes.add(file.stat().st_ino)
        step = max((memory.reached for memory in self._memories.values()), default=-1)
        if self._killed_at is not None and step > self.kills[-1][1]:
            self.secs.append(round(time.monotonic() - self._killed_at, 2))
            self._killed_at = None
        return step

    def wait_for(self, condition):
        return wait_until(condition, self._command, pause_secs=0.005)

    def living(self):
        """Return the workers of an attempt of which none has been killed, by name."""
        pids = worker_pids(self._directory)
        return pids if self._dead.isdisjoint(pids.values()) else {}

    def kill(self, draw, count):
        """Kill so many workers of the living, when there are some."""
        pids = self.wait_for(self.living)
        victims = draw.sample(sorted(pids), min(count, len(pids)))
        self.kills.append((victims, self.reached()))
        for name in victims:
            os.kill(pids[name], signal.SIGKILL)
        self._killed_at = time.monotonic()
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


def run_under_fire(directory, number, draw, *overrides, count=1):
    """Run a command of which `count` processes are killed at each of `number` moments."""
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
            fire.kill(draw, count)
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


def schedules():
    """Yield the layout, the number of its seed, and how many processes each moment kills."""
    for layout, number in itertools.product(LAYOUTS, range(3)):
        count = 2 if layout == "four_workers" and number % 2 else 1
        is_first = number == 0 and layout == "two_workers"
        mark = pytest.mark.slow if is_first else pytest.mark.long
        yield pytest.param(layout, number, count, id=f"{layout}-{number}", marks=mark)


@pytest.mark.parametrize(("layout", "number", "count"), list(schedules()))
def test_run_whose_workers_are_killed_ends_like_the_straight_one(tmp_path, layout, number, count):
    draw = random.Random(f"{SEED}-{layout}-{number}")
    options = [*RUN, *LAYOUTS[layout]]
    # The first is one of the tests that are run often.
    fire = run_under_fire(tmp_path, 12 if number else 3, draw, *options, count=count)
    print(f"STEADFAST_KILLS_SEED={SEED}: {layout} {number} {fire.kills} {fire.secs}")
    print(fire.output)
    lines = [line for line in fire.output.splitlines() if line.startswith("Continuing from")]
    assert all(" (memory of " in line for line in lines), lines
    run_dir = only_run(tmp_path)
    assert_like_straight(run_dir, finished(*options))


@pytest.mark.parametrize("layout", [pytest.param(x, marks=pytest.mark.long) for x in LAYOUTS])
def test_command_that_is_killed_goes_on_from_the_checkpoint(tmp_path, layout):
    """With the supervisor the memories of its workers are gone."""
    draw = random.Random(f"{SEED}-{layout}")
    options = [*RUN, *LAYOUTS[layout]]
    for step in sorted(draw.sample(range(20, STEPS), 5)):
        fire = Fire(tmp_path, *options)
        try:
            fire.wait_for(lambda fire=fire, step=step: fire.reached() >= step)
            time.sleep(draw.uniform(0, _STEP_SECS))
            workers = fire.living()
        finally:
            fire.close()
        for pid in workers.values():
            wait_gone(pid)
        fire.assert_nothing_left()
    fire = Fire(tmp_path, *options)
    try:
        fire.end()
    finally:
        fire.close()
    assert re.search("Continuing from the checkpoint of step [0-9]+", fire.output), fire.output
    assert_like_straight(only_run(tmp_path), finished(*options))
