"""Two hosts and one folder: one trains; it is lost, or loses its lock, and the other takes over."""

import os
import random
import signal

import pytest

from tests.support.command_line import run_here
from tests.support.fault_schedules import Fault, free, hold
from tests.support.hosts import two_hosts
from tests.support.processes import (
    OPTIONS,
    assert_same_run,
    descendants,
    finish,
    finished,
    only_run,
    output_of,
    wait_gone,
    wait_until,
    worker_pids,
)
from trainer.runs.checkpoint_marker import committed_steps, unfinished_steps

SECS = 600
TRAINING = [
    "model=mlp", "model.hidden=[8]", "model.dropout=0.3", "writers=[jsonl]",
    *(option for option in OPTIONS if not option.startswith(("model.", "augment."))),
    "checkpoint.keep=2",
]  # fmt: skip
HELD = Fault("another host", 8, 0.0, random.Random(0))

STUCK = '''
import pathlib, socket, time

from trainer.engine.checkpoints import checkpointer

commit = checkpointer.commit


def stuck(directory, step, *rest):
    if socket.gethostname() == "host-0" and step == 12:
        pathlib.Path("saving").touch()
        time.sleep(600)
    commit(directory, step, *rest)


checkpointer.commit = stuck


class Stuck:
    """Has one host stop in a save, between the files of the checkpoint and its marker."""

    def on_evaluate(self, step, metrics):
        return False
'''

pytestmark = pytest.mark.slow


def check_same_end(run_dir, unfinished=()):
    straight = finished(*TRAINING)
    assert worker_pids(run_dir) == {}
    assert_same_run(run_dir, straight)
    assert committed_steps(run_dir / "checkpoints") == [21, 24]
    assert unfinished_steps(run_dir / "checkpoints") == set(unfinished)


def test_other_host_waits_sees_whole_checkpoints_and_takes_over_a_lost_run(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [*TRAINING, "+callbacks.stuck={_target_:stuck.Stuck}"]
    with two_hosts() as hosts:
        first = hosts.start(0, tmp_path, *command)
        wait_until((tmp_path / "saving").exists, first)
        run_dir = only_run(tmp_path)
        refused = hosts.start(1, tmp_path, *command)
        code, out, err = finish(refused)
        assert (code, out) == (2, "")
        assert err == (
            f"error: runs/{run_dir.name} is in use by another process (pid {first.pid} on host-0); "
            "wait for it, or stop it\n"
        )
        # A reader takes what has a marker.
        shown = run_here("checkpoints", str(run_dir))
        assert [line.split()[0] for line in shown.out.splitlines()] == [
            "step", "6", "9", "unfinished:",
        ]  # fmt: skip
        assert (shown.out.count("verified"), shown.out.count("ckpt-12.")) == (2, 2)

        pids = [first.pid, *descendants(first.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        first.communicate(timeout=SECS)
        for pid in pids[1:]:
            wait_gone(pid, SECS)
        # What it has left says that it holds the lock.
        assert (run_dir / ".lock").read_text().split()[:2] == [str(first.pid), "host-0"]
        out = output_of(hosts.start(1, tmp_path, *command))
        assert "Continuing from the checkpoint of step 9." in out
    check_same_end(run_dir)


@pytest.mark.long
def test_host_that_has_lost_its_lock_saves_nothing_more(tmp_path):
    command = [*TRAINING, hold(tmp_path, tmp_path, [HELD.step])]
    with two_hosts() as hosts:
        first = hosts.start(0, tmp_path, *command)
        wait_until((tmp_path / "reached-8").exists, first)
        run_dir = only_run(tmp_path)
        # No file server is here that gives the lock away: the next holder locks another file.
        (run_dir / ".lock").unlink()
        second = hosts.start(1, tmp_path, *command)
        out = output_of(second)
        assert "Continuing from the checkpoint of step 6." in out
        free(tmp_path, HELD)
        code, out, err = finish(first)
        assert code == 2, out + err
        assert (
            f"error: runs/{run_dir.name} was taken over by another process (pid {second.pid} on "
            "host-1) while this one had lost its lock; nothing more is saved here, and the run "
            "continues there" in err.splitlines()
        )
    # It may not even remove what it has written: the other one could be writing there.
    check_same_end(run_dir, unfinished=[9])
