"""A search with real processes: killed, repeated, and extended."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import optuna
import pytest

from tests.support.processes import TIMEOUT_SECS, run, start

pytestmark = pytest.mark.slow

SEARCH = [
    "-m",
    "search=optuna",
    "search.trials=3",
    "sweep.name=mine",
    "model=softmax",
    "optimizer.learning_rate=tag(log,interval(1e-3,1e-1))",
    "batch.global_size=int(interval(16,64))",
    "train.steps=20",
    "evaluate.every_steps=5",
    "checkpoint.every_steps=5",
    "writers=[jsonl]",
]


def kill_at(directory: Path, line: str) -> None:
    """Start the search and kill it when a line has been printed."""
    with start(directory, *SEARCH) as process:
        for printed in process.stdout:
            if printed.startswith(line):
                process.kill()
        assert process.wait(TIMEOUT_SECS) == -signal.SIGKILL, process.stderr.read()


def check_consistency(directory: Path, total: int) -> dict[str, bytes]:
    """Compare study, summary and run directories; return the results of the runs."""
    folder = directory / "runs" / "sweeps" / "mine"
    summary = json.loads((folder / "summary.json").read_text())
    points = {point["run"]: point for point in summary["points"]}
    trials = optuna.load_study(study_name="mine", storage=f"sqlite:///{folder / 'study.db'}").trials
    assert [trial.user_attrs["point"] for trial in trials] == list(range(1, total + 1))
    for trial in trials:
        point = points[trial.user_attrs["run"]]
        assert trial.state.name == "COMPLETE"
        assert trial.value == point["metrics"]["accuracy"]
        assert {key: str(value) for key, value in trial.params.items()} == point["varied"]
        assert len(trial.intermediate_values) == 4
    results = {
        str(path.parent.relative_to(directory)): path.read_bytes()
        for path in directory.glob("runs/*/result.json")
    }
    assert results.keys() == points.keys()
    assert len(results) == total
    return results


def test_killed_and_repeated_search_has_every_point_once(tmp_path: Path) -> None:
    kill_at(tmp_path, "point 1 of 3: started")
    kill_at(tmp_path, "point 2 of 3: started")
    code, _, err = run(tmp_path, *SEARCH)
    assert code == 0, err
    results = check_consistency(tmp_path, 3)
    code, out, err = run(tmp_path, *SEARCH, "search.trials=4")
    assert code == 0, err
    assert out.count(": started") == 1
    extended = check_consistency(tmp_path, 4)
    assert {path: extended[path] for path in results} == results
