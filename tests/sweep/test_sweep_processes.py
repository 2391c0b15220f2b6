"""A sweep with real processes, killed in the middle of its points."""

import pytest

from tests.support.processes import (
    OWN_SERVER,
    TIMEOUT_SECS,
    descendants,
    start,
    wait_gone,
    wait_until,
)
from trainer.runs.checkpoint_marker import committed_steps

STEPS = 24
GRID = [
    "-m", "model=softmax,cnn", "optimizer.learning_rate=0.1,0.03,0.01", f"train.steps={STEPS}",
    "batch.global_size=32", "evaluate.every_steps=6", "checkpoint.every_steps=4",
    "checkpoint.every_epochs=null", "writers=[jsonl]", "sweep.name=grid",
]  # fmt: skip


def sweep(directory, *overrides):
    """Run a sweep to its end; return the files of its summary by name."""
    process = start(directory, *GRID, *overrides, **OWN_SERVER)
    try:
        _, err = process.communicate(timeout=3 * TIMEOUT_SECS)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    folder = directory / "runs" / "sweeps" / "grid"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def finished_runs(directory):
    """Return the files of finished runs, by name."""
    return {
        result.parent.name: {
            str(path.relative_to(result.parent)): path.read_bytes()
            for path in result.parent.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        for result in directory.glob("runs/*/result.json")
    }


def saved_steps(directory):
    """Return the sum of the steps of the newest checkpoints of all points."""
    folders = directory.glob("runs/*/checkpoints")
    return sum(max(committed_steps(folder), default=0) for folder in folders)


@pytest.mark.slow
def test_killed_sweep_continues_to_the_same_result(tmp_path):
    """Two points at a time, killed twice, give the same as one at a time."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    before = {}
    for target in (STEPS // 2, 3 * STEPS):
        process = start(killed, *GRID, "sweep.jobs=2", **OWN_SERVER)
        wait_until(lambda target=target: saved_steps(killed) >= target, process)
        pids = descendants(process.pid)
        process.kill()
        process.communicate(timeout=TIMEOUT_SECS)
        for pid in pids:
            wait_gone(pid)
        after = finished_runs(killed)
        assert before.items() <= after.items()  # finished runs have not changed
        before = after
    assert sweep(killed, "sweep.jobs=2") == sweep(undisturbed)
    assert before.items() <= finished_runs(killed).items()
    assert finished_runs(killed).keys() == finished_runs(undisturbed).keys()
    assert len(finished_runs(killed)) == 6
