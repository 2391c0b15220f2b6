import json
import os
import subprocess
import sys

import pytest

from benchmarks.limit import Turn, rows, steadfast
from benchmarks.scaling.__main__ import measure_link, summarise, table
from benchmarks.scaling.contestants import CONTESTANTS, JOBS, STEPS_PER_LOOP
from benchmarks.scaling.team import Team
from benchmarks.summaries import Meter
from tests.support.processes import ROOT, wait_gone
from tests.support.training import engine

MEMBER = """
import os, signal, sys, time
from multiprocessing.connection import Connection
signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent = Connection(int(sys.argv[-1]))
parent.send((os.getpid(), os.sched_getaffinity(0), os.environ.get("TF_CONFIG")))
answer = parent.recv()
if sys.argv[1] == answer:
    raise SystemExit("this is why")
time.sleep(600)
"""

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="each process gets a core of its own"
)


def start(team, tmp_path, *names):
    """Start processes that stay, but for the one whose name is told."""
    (tmp_path / "member.py").write_text(MEMBER)
    for name in names:
        team.start("member", name, environment={"PYTHONPATH": str(tmp_path)})
    return team.hear()


@needs_two_cores
def test_team_pins_each_process_to_a_core_and_ends_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "of the shell")
    with Team() as team:
        pids, cores, clusters = zip(*start(team, tmp_path, "a", "b"), strict=True)
    assert [len(own) for own in cores] == [1, 1]
    assert cores[0] != cores[1]
    assert clusters == (None, None)
    for pid in pids:
        wait_gone(pid, timeout=0)


@needs_two_cores
def test_team_ends_when_one_process_fails_and_says_why(tmp_path):
    with Team() as team:
        pids = [pid for pid, *_ in start(team, tmp_path, "a", "b")]
        team.tell("b")
        with pytest.raises(
            SystemExit, match=r"ended too early\n--- process 0 ---\n--- process 1 ---\nthis is why"
        ):
            team.hear()
    for pid in pids:
        wait_gone(pid, timeout=0)


def test_team_ends_a_process_that_hangs(tmp_path):
    with Team(limit_secs=3) as team:
        ((pid, *_),) = start(team, tmp_path, "a")
        team.tell("b")
        with pytest.raises(SystemExit, match="took longer than 3 s"):
            team.hear()
    wait_gone(pid, timeout=0)


@needs_two_cores
def test_link_and_memory_bandwidth_are_measured():
    rates = measure_link()
    assert 1e6 < rates["link"] < rates["memory"]


def test_engine_is_timed_in_its_own_process(tmp_path):
    class Done(Exception):
        pass

    class Clock:
        gradient_bytes = 0
        heard = ()

        def __call__(self, step, loss):
            self.heard += ((step, loss),)
            if step == 2 * STEPS_PER_LOOP:
                raise Done

    clock = Clock()
    with pytest.raises(Done):
        CONTESTANTS["ceiling"].train(JOBS["tutorial_cnn"], tmp_path, clock)
    assert clock.gradient_bytes == 4 * 2_770_634
    assert [step for step, _ in clock.heard] == [0, STEPS_PER_LOOP, 2 * STEPS_PER_LOOP]
    assert 0 < clock.heard[-1][1] < 2.4


def report(ms, sent=11e6):
    return {"ms": ms, "cpu_ms": 20.0, "sent": sent, "gradient_bytes": 10_000_000, "loss": 0.5}


RESULTS = {
    "link": [{"link": 1e9, "memory": 4e9}] * 3,
    "ceiling": [report(50.0, 0.0), report(40.0, 0.0), report(90.0, 0.0)],
    "tutorial": [report(200.0), report(210.0), report(190.0)],
    "steadfast": [report(100.0), report(100.0), report(100.0)],
}


def test_ratios_are_ratios_of_medians():
    summary = summarise(RESULTS, 2)
    ours = summary["contestants"]["steadfast"]
    assert (ours["times_tutorial"], ours["share_of_ceiling"]) == (2.0, 0.5)
    assert summary["ring_bytes"] == 10_000_000
    assert (summary["link_bound_ms"], summary["memory_bound_ms"]) == (10.0, 2.5)
    text = table("title", summary)
    assert (
        "| Steadfast, shared memory | 100.0 | 100.0 to 100.0 | 2.00 | 50% | 20.0 | 11.00 |" in text
    )
    assert "one after the other: 60.0 ms (83% of the ceiling), in 16 bits 55.0 ms (91%)" in text


def test_rows_without_a_comparison_stay_empty():
    summary = summarise({"link": RESULTS["link"], "steadfast": [report(100.0, None)]}, 2)
    assert "| Steadfast, shared memory | 100.0 | 100.0 to 100.0 |  |  | 20.0 |  |" in table(
        "title", summary
    )


@pytest.mark.slow
@needs_two_cores
def test_contestants_are_measured_with_two_processes():
    command = [
        sys.executable,
        "-m",
        "benchmarks.scaling",
        "tutorial_cnn",
        "--rounds",
        "1",
        "--steps",
        "1",
    ]
    done = subprocess.run(
        [*command, "--contestants", "ceiling,tutorial,float16"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["models"]["tutorial_cnn"]
    rows = found["contestants"]
    assert list(rows) == ["ceiling", "tutorial", "float16"]
    assert all(row["ms"] > 0 and row["cpu_ms"] > 0 for row in rows.values())
    # Guessing costs 2.3. The tutorial's loss is the mean since the first step, and RMSprop's first
    # steps are too long: 1 to 3, by the seed.
    assert all(0 < row["loss"] < 10 for row in rows.values())
    if "bytes of others" not in done.stderr and rows["ceiling"]["sent_bytes"] is not None:
        assert rows["ceiling"]["sent_bytes"] == 0
        # What a ring sends, and a little for gRPC and TCP.
        assert 1 <= rows["tutorial"]["sent_bytes"] / found["ring_bytes"] < 1.05
        assert 1 <= 2 * rows["float16"]["sent_bytes"] / found["ring_bytes"] < 1.05


@pytest.mark.parametrize(("writers", "write"), [("[]", False), ("[tensorboard,jsonl]", True)])
def test_reports_and_writer_threads_are_timed(tmp_path, writers, write):
    often = [
        f"writers={writers}",
        "summary.every_steps=20",
        "evaluate.every_epochs=null",
        "checkpoint.every_epochs=null",
    ]
    turn = Meter(engine(tmp_path, "train.steps=100000", "train.steps_per_loop=20", *often)).train(
        100
    )
    assert turn.ms > 0
    assert 0 < turn.reporting < 1
    assert (turn.writing > 0) == write


def test_turns_train_their_steps(tmp_path):
    trained = engine(
        tmp_path,
        "train.steps=100000",
        "train.steps_per_loop=4",
        "evaluate.every_epochs=null",
        "checkpoint.every_epochs=null",
    )
    for end in (8, 16):
        assert min(steadfast(trained, 8)) > 0
        assert trained.step == end


def test_ratios_are_of_turns_of_one_round():
    results = {
        "Steadfast": [Turn(1.0, 2.0), Turn(10.0, 20.0), Turn(4.0, 2.0)],
        "other": [Turn(3.0, 2.0), Turn(20.0, 60.0), Turn(4.0, 8.0)],
    }
    assert rows(results).splitlines()[2:] == [
        "| Steadfast | 4 | 1 to 10 | 1.00 | 2 | 1.00 |",
        "| other | 4 | 3 to 20 | 2.00 | 8 | 3.00 |",
    ]
