"""Sweeps with real processes: killed at any moment, failing, stopped."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import (
    OWN_SERVER,
    TIMEOUT_SECS,
    descendants,
    start,
    wait_gone,
)
from trainer.runs.checkpoint_marker import committed_steps

pytestmark = pytest.mark.slow

NUM_KILLS = 5
SEED = 20261121
STEPS = 24
SWEEP_TIMEOUT_SECS = 3 * TIMEOUT_SECS
GRID = [
    "-m", "model=softmax,cnn", "optimizer.learning_rate=0.1,0.03,0.01", f"train.steps={STEPS}",
    "batch.global_size=32", "evaluate.every_steps=6", "checkpoint.every_steps=4",
    "checkpoint.every_epochs=null", "writers=[jsonl]", "sweep.name=grid",
]  # fmt: skip


def sweep(directory: Path, *overrides: str) -> tuple[int, str, str]:
    """Run a sweep to its end; return exit code, stdout and stderr."""
    process = start(directory, *overrides, **OWN_SERVER)
    try:
        out, err = process.communicate(timeout=SWEEP_TIMEOUT_SECS)
    finally:
        process.kill()
    return process.returncode, out, err


def summary(directory: Path, name: str = "grid") -> dict[str, bytes]:
    """Return the files of a sweep's summary by name."""
    folder = directory / "runs" / "sweeps" / name
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def runs(directory: Path) -> list[Path]:
    return [path for path in sorted((directory / "runs").glob("*")) if path.name != "sweeps"]


def finished_runs(directory: Path) -> dict[str, tuple]:
    """Return names and contents of all files of finished runs."""
    return {
        run_dir.name: tuple(
            (str(path.relative_to(run_dir)), path.read_bytes())
            for path in sorted(run_dir.rglob("*"))
            if path.is_file() and path.name != ".lock"
        )
        for run_dir in runs(directory)
        if (run_dir / "result.json").exists()
    }


def saved_steps(directory: Path) -> int:
    """Return the sum of the steps of the newest checkpoints of all points."""
    return sum(
        max(committed_steps(run_dir / "checkpoints"), default=0) for run_dir in runs(directory)
    )


def num_ledger_lines(directory: Path) -> int:
    """Return the number of lines in the ledgers of all runs: it grows with every event."""
    return sum(path.read_bytes().count(b"\n") for path in directory.glob("runs/*/ledger.jsonl"))


def wait_for(process: subprocess.Popen, condition: Callable[[subprocess.Popen], bool]) -> None:
    """Wait until a condition holds, or the process has ended."""
    deadline = time.monotonic() + SWEEP_TIMEOUT_SECS
    while not condition(process) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep without kills, one point at a time."""
    directory = tmp_path_factory.mktemp("undisturbed")
    code, _, err = sweep(directory, *GRID)
    assert (code, err) == (0, "")
    return directory


def test_killed_sweep_continues_to_the_same_result(undisturbed: Path, tmp_path: Path) -> None:
    """Two points at a time, killed again and again, give the same as one at a time."""
    rng = random.Random(SEED)
    before: dict[str, tuple] = {}
    num_kills = 0
    for target in sorted(rng.sample(range(6 * STEPS - 10), NUM_KILLS)):
        process = start(tmp_path, *GRID, "sweep.jobs=2", **OWN_SERVER)
        wait_for(
            process,
            lambda process, target=target: (
                saved_steps(tmp_path) >= target and bool(descendants(process.pid))
            ),
        )
        num_lines = num_ledger_lines(tmp_path) + rng.randrange(6)
        wait_for(process, lambda process, lines=num_lines: num_ledger_lines(tmp_path) >= lines)
        pids = descendants(process.pid)
        process.kill()
        process.communicate(timeout=SWEEP_TIMEOUT_SECS)
        num_kills += process.returncode == -signal.SIGKILL
        for pid in pids:
            wait_gone(pid)
        after = finished_runs(tmp_path)
        assert before.items() <= after.items()  # finished runs have not changed
        before = after
    assert num_kills == NUM_KILLS
    code, _, err = sweep(tmp_path, *GRID, "sweep.jobs=2")
    assert (code, err) == (0, "")
    assert before.items() <= finished_runs(tmp_path).items()
    assert summary(tmp_path) == summary(undisturbed)
    assert [path.name for path in runs(tmp_path)] == [path.name for path in runs(undisturbed)]
    assert len(runs(tmp_path)) == 6
