"""Runs from a fork server: the same bits as from fresh processes, and nothing is left behind."""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.support.marks import first_only
from tests.support.processes import (
    OWN_SERVER,
    descendants,
    finish,
    run,
    start,
    succeed,
    wait_gone,
    worker_pids,
)
from trainer.cluster.fork_server import ForkServer

pytestmark = pytest.mark.slow

NUM_KILLS = int(os.environ.get("STEADFAST_KILLS", "2"))
SHORT = ["model=softmax", "train.steps=4", "batch.global_size=16", "train.steps_per_loop=1"]
USER_CODE = '''
"""Changes what all code of a process shares, and prints how it finds it."""
import os
import pathlib
import random
import tensorflow as tf


class Changes:
    def __init__(self, *, fails: bool = False, version: int = 0) -> None:
        print("parent", os.getppid(), flush=True)
        print("found", tf.add is not tf.subtract, "CHANGED" in os.environ, pathlib.Path.cwd().name,
              tf.keras.mixed_precision.global_policy().name, VERSION, flush=True)
        tf.add = tf.subtract
        os.environ["CHANGED"] = "1"
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
        random.seed(1)
        tf.random.set_seed(7)
        if fails:
            raise RuntimeError("as asked")

    def on_evaluate(self, step, metrics):
        tf.keras.mixed_precision.set_global_policy("float32")
        return False


VERSION = 1
'''
CHANGES = "+callbacks.changes={_target_:changes.Changes}"


@pytest.fixture
def server(monkeypatch):
    """A server of this test alone, for several commands."""
    monkeypatch.setenv("STEADFAST_FORK_SERVER", "")
    own = ForkServer.acquire()
    monkeypatch.setenv("STEADFAST_FORK_SERVER", str(own.directory))
    yield own
    own.release()


def test_child_does_not_see_what_earlier_ones_have_changed(server, tmp_path):
    (tmp_path / "changes.py").write_text(USER_CODE)
    code, out, err = run(tmp_path, *SHORT, "name=fails", CHANGES.replace("}", ",fails:true}"))
    assert (code, "as asked" in err) == (1, True), out + err
    killed = "+fault.end={action:kill,process:worker-0,phase:step,at:2}"
    code, out, err = run(tmp_path, *SHORT, "name=killed", "restart.max_restarts=0", killed)
    assert (code, "out of memory" in err) == (1, True), out + err
    for version in (1, 2):
        (tmp_path / "changes.py").write_text(
            USER_CODE.replace("VERSION = 1", f"VERSION = {version}")
        )
        out = succeed(tmp_path, *SHORT, f"name=v{version}", CHANGES)
        # Neither a patched module nor a variable or policy of another child, and the edited code.
        lines = out.splitlines()
        assert f"found True False {tmp_path.name} float32 {version}" in lines
        assert f"parent {server._process.pid}" in lines


@pytest.mark.parametrize("victim", first_only(["server", "supervisor", "worker"]))
def test_kill_at_any_moment_leaves_nothing_and_the_same_command_finishes(tmp_path, victim):
    moments = random.Random(f"fork-{victim}")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), **OWN_SERVER}
    for number in range(NUM_KILLS):
        command = [*SHORT, "restart.backoff_secs=0", f"name=run{number}"]
        process = start(tmp_path, *command, **environment)
        # Any moment of a short run, alternately of its start and later; no state is waited for.
        time.sleep(moments.uniform(*[(0.05, 3), (3, 8)][number % 2]))
        below = descendants(process.pid)
        workers = sorted(set(worker_pids(tmp_path).values()))
        servers = [pid for pid in below if pid not in workers]
        targets = {"supervisor": [process.pid], "server": servers, "worker": workers}[victim]
        for pid in targets[:1]:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        code, out, err = finish(process)
        for pid in below:
            wait_gone(pid)
        if code == -signal.SIGKILL:
            assert victim == "supervisor"
            code, out, err = finish(start(tmp_path, *command, **environment))
        assert code == 0, out + err
    assert list(temporary.iterdir()) == []
    assert len(list(tmp_path.glob("runs/*/result.json"))) == NUM_KILLS
