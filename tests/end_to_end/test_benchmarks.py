import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import limit
from benchmarks.fire.burning import kill_times
from benchmarks.fire.job import Job, replay
from tests.support.processes import ROOT
from tests.support.training import engine

QUIET = ("train.steps=100000", "evaluate.every_epochs=null", "checkpoint.every_epochs=null")


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
