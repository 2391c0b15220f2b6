import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks import limit, ring
from benchmarks.fire.burning import kill_times
from benchmarks.fire.job import Job, replay
from benchmarks.scaling.__main__ import measure_link, summarize, table
from benchmarks.scaling.team import Team
from benchmarks.summaries import Meter
from tests.support.processes import ROOT, wait_gone
from tests.support.training import engine

MEMBER = """
import os, signal, sys, time
from multiprocessing.connection import Connection
signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent = Connection(int(sys.argv[-1]))
parent.send((os.getpid(), os.environ.get("TF_CONFIG")))
answer = parent.recv()
if sys.argv[1] == answer:
    raise SystemExit("this is why")
time.sleep(600)
"""


def start(team, tmp_path, *names):
    """Start processes that stay, but for the one whose name is told."""
    (tmp_path / "member.py").write_text(MEMBER)
    for name in names:
        team.start("member", name, environment={"PYTHONPATH": str(tmp_path)})
    return team.hear()


@pytest.mark.parametrize(
    ("limit_secs", "names", "problem"),
    [
        (60, "ab", r"ended too early\n--- process 0 ---\n--- process 1 ---\nthis is why"),
        (1, "a", "took longer than 1 s"),
    ],
)
def test_team_ends_when_a_process_fails_or_hangs(tmp_path, monkeypatch, limit_secs, names, problem):
    monkeypatch.setenv("TF_CONFIG", "of the shell")
    with Team(limit_secs=limit_secs) as team:
        pids, clusters = zip(*start(team, tmp_path, *names), strict=True)
        assert set(clusters) == {None}
        team.tell("b")
        with pytest.raises(SystemExit, match=problem):
            team.hear()
    for pid in pids:
        wait_gone(pid, timeout=0)


def test_link_and_memory_bandwidth_are_measured():
    rates = measure_link()
    assert 1e6 < rates["link"] < rates["memory"]


def report(ms, sent=11e6, **more):
    return {"ms": ms, "cpu_ms": 20.0, "sent": sent, **more}


def steadfast(ms, ceiling_ms, sent=0.0):
    return report(ms, sent, ceiling_ms=ceiling_ms, gradient_bytes=10_000_000)


LINK = [{"link": 1e9, "memory": 4e9}] * 3


def test_ratios_are_ratios_of_medians():
    results = {
        "link": LINK,
        "tutorial": [report(200.0), report(210.0), report(190.0)],
        "steadfast": [steadfast(100.0, 50.0), steadfast(100.0, 40.0), steadfast(100.0, 90.0)],
    }
    summary = summarize(results, 2)
    ours = summary["contestants"]["steadfast"]
    assert (ours["times_tutorial"], ours["share_of_ceiling"]) == (2.0, 0.5)
    assert summary["contestants"]["tutorial"]["share_of_ceiling"] == 0.25
    assert (summary["ceiling_ms"], summary["ring_bytes"]) == (50.0, 10_000_000)
    text = table("title", summary)
    assert "| Steadfast | 100.0 | 100.0 to 100.0 | 2.00 | 50% | 20.0 | 0.00 |" in text
    assert "at least 10.0 ms a step, 5.0 ms in 16 bits; by memory 2.5 ms" in text
    assert "one after the other: 60.0 ms (83% of the ceiling), in 16 bits 55.0 ms (91%)" in text


@pytest.mark.long
def test_contestants_are_measured_with_two_processes():
    command = [sys.executable, "-m", "benchmarks.scaling", "tutorial_cnn", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--secs", "1", "--contestants", "tutorial,float16"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["models"]["tutorial_cnn"]
    rows = found["contestants"]
    assert list(rows) == ["tutorial", "float16"]
    assert all(row["ms"] > 0 and row["cpu_ms"] > 0 for row in rows.values())
    assert found["ring_bytes"] == 4 * 2_770_634  # 2 (n - 1) / n is 1
    assert rows["tutorial"]["share_of_ceiling"] > 0
    if "bytes of others" not in done.stderr and rows["float16"]["sent_bytes"] is not None:
        # What a ring sends, and a little for gRPC and TCP; a window may end within a step.
        for name, share in (("tutorial", 1.0), ("float16", 0.5)):
            sent = rows[name]["sent_bytes"] / found["ring_bytes"]
            assert sent == pytest.approx(share, rel=0.25)


QUIET = ("train.steps=100000", "evaluate.every_epochs=null", "checkpoint.every_epochs=null")


@pytest.mark.slow
def test_reports_and_writer_threads_are_timed(tmp_path):
    often = ["train.steps_per_loop=20", "writers=[tensorboard,jsonl]", "summary.every_steps=20"]
    turn = Meter(engine(tmp_path, *QUIET, *often)).train(100)
    assert turn.ms > 0
    assert 0 < turn.reporting < 1
    assert turn.writing > 0


def test_turns_train_their_steps(tmp_path):
    trained = engine(tmp_path, *QUIET, "train.steps_per_loop=4")
    for end in (8, 16):
        assert min(limit.steadfast(trained, 8)) > 0
        assert trained.step == end


def test_ratios_are_of_turns_of_one_round():
    results = {
        "Steadfast": [limit.Turn(1.0, 2.0), limit.Turn(10.0, 20.0), limit.Turn(4.0, 2.0)],
        "other": [limit.Turn(3.0, 2.0), limit.Turn(20.0, 60.0), limit.Turn(4.0, 8.0)],
    }
    assert limit.rows(results).splitlines()[2:] == [
        "| Steadfast | 4 | 1 to 10 | 1.00 | 2 | 1.00 |",
        "| other | 4 | 3 to 20 | 2.00 | 8 | 3.00 |",
    ]


# Divisible or not, shorter than the ring, and longer than the buffer of a socket.
@pytest.mark.parametrize(("count", "size"), [(2, 60), (3, 1), (3, 61), (5, 200_003)])
def test_ring_sums_with_the_fewest_messages_and_bytes(count, size):
    own = np.random.default_rng(size).integers(-100, 100, [count, size]).astype(np.float32)
    ends = ring.links(count)

    def work(rank):
        member = ring.Ring(rank, count, *ends[rank])
        values = own[rank].copy()
        member.all_reduce(values)
        return values, member.sent

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(work, range(count), timeout=60))
    for pair in ends:
        for end in pair:
            end.close()
    for values, sent in results:
        np.testing.assert_array_equal(values, own.sum(axis=0))  # whole numbers: no rounding
        assert sent.messages == 2 * (count - 1)
    assert sum(sent.num_bytes for _, sent in results) == 4 * 2 * (count - 1) * size


def test_ring_of_processes_counts_the_same():
    results = ring.run_processes(3, 1000, repeats=1)
    assert [(result.error, result.sent.messages) for result in results] == [(0.0, 4)] * 3
    assert sum(result.sent.num_bytes for result in results) == 4 * 4 * 1000


def test_replay_counts_the_last_record_of_each_step(tmp_path):
    job = Job(str(tmp_path), "", epochs=1, steps_per_epoch=3, batch_size=4, save_every=None)
    lost, kept = [(0, 0, 1), (1, 2, 3), (2, 0, 5)], [(1, 4, 5), (2, 0, 1)]
    for name, records in (("0-1", lost), ("0-2", kept), ("1-1", [(0, 2, 3), (1, 6, 7), (2, 8, 9)])):
        content = np.array(records, np.int64).tobytes()
        (tmp_path / f"steps-{name}").write_bytes(content + b"cut off")
    assert replay(job, 2) == (5, 2)  # examples 0 and 1 twice, 10 and 11 never


def test_kills_come_at_the_same_times_from_the_same_seed():
    times = [list(itertools.islice(kill_times(8.0, seed), 50)) for seed in (0, 0, 1)]
    assert times[0] == times[1] != times[2]
    gaps = np.diff([0, *times[0]])
    assert 4 <= gaps.min() <= gaps.max() <= 12
    assert next(kill_times(None, 0)) == float("inf")


@pytest.mark.long
def test_contenders_are_killed_and_compared(tmp_path):
    command = [sys.executable, "-m", "benchmarks.fire", "--quick", "--processes", "1"]
    command += ["--contenders", "steadfast", "fit", "--every", "3", "--out", "results.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=600, check=True)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["contender"] for row in rows] == ["steadfast", "steadfast", "fit", "fit"]
    for row in (rows[0], rows[2]):
        assert row["kills"] == row["misplaced_examples"] == row["largest_difference"] == 0
        assert row["computed_steps"] == row["steps"]
    assert rows[1]["kills"] > 0
    assert rows[1]["misplaced_examples"] == rows[1]["largest_difference"] == 0
