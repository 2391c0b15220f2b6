"""A full or removed disk: one line with the cause, and the run can continue."""

import re
from pathlib import Path

import pytest

from tests.support.processes import final_variables, finished
from tests.support.small_disk import own_mounts, small_disk
from tests.support.training import assert_same_bits
from trainer.launch.processes import Log
from trainer.runs.checkpoint_marker import committed_steps, verify

OPTIONS = [
    "model=softmax", "train.steps=24", "batch.global_size=16", "evaluate.every_steps=4",
    "evaluate.every_epochs=null",
    "checkpoint.every_steps=3", "checkpoint.every_epochs=null", "summary.every_steps=5",
    "restart.backoff_secs=0",
]  # fmt: skip
# Nothing else is written between the save that fails in the background and the next one.
IN_BACKGROUND = [
    "checkpoint.async_write=true", "summary.every_steps=24", "evaluate.every_steps=8"
]  # fmt: skip
MULTI = ["strategy=multi_worker"]
NO_SPACE, GONE = "No space left on device", "No such file or directory"


def sabotage(action, at):
    return f"+callbacks.saboteur={{_target_:saboteur.Saboteur,action:{action},at:{at}}}"


def only_run(disk):
    (found,) = (disk.path / "runs").iterdir()
    return found


@pytest.fixture(scope="module")
def mounts():
    with own_mounts() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [[], IN_BACKGROUND, pytest.param(MULTI, marks=pytest.mark.long)],
    ids=["one worker", "in the background", "two workers"],
)
def test_failed_save_keeps_older_checkpoints_and_the_same_command_continues(
    mounts, tmp_path, strategy
):
    with small_disk(mounts, tmp_path, size=16 << 20) as disk:
        code, out, err = disk.run(*OPTIONS, *strategy, sabotage("full", 8))
        assert code == 1, out + err
        first, second = err.splitlines()
        assert first.startswith(
            "error: the checkpoint of step 9 could not be written to "
            f"runs/{only_run(disk).name}/checkpoints: "
        )
        assert NO_SPACE in first
        assert "__wrapped__" not in first
        # There may be room for it again: what the save has written is gone.
        assert second.startswith("error: the newest checkpoint is of step 6; to continue: ")
        is_recorded = (only_run(disk) / "failure.json").exists()
        assert is_recorded != bool(re.search(r"^warning: .*failure\.json ", out, re.MULTILINE)), out
        if strategy != MULTI:  # of several, one prints, and not always the one that is shown
            # It comes through, though the log has no room for it.
            assert out.count("of what the user's code has to say") == 2000
        assert "restart" not in out.lower()
        place = only_run(disk) / "checkpoints"
        assert {file.name.split(".")[0] for file in place.iterdir()} == {"ckpt-3", "ckpt-6"}
        assert [verify(place, step) for step in committed_steps(place)] == [None, None]
        disk.restore()
        code, out, err = disk.run(*OPTIONS, *strategy, sabotage("full", 8))
        assert code == 0, out + err
        assert "Continuing from the checkpoint of step 6." in out
        straight = finished(*OPTIONS, *([] if strategy is IN_BACKGROUND else strategy))
        assert_same_bits(final_variables(only_run(disk)), final_variables(straight))


@pytest.mark.slow
def test_removed_run_directory_ends_the_run_and_is_not_recreated(mounts, tmp_path):
    with small_disk(mounts, tmp_path) as disk:
        code, out, err = disk.run(*OPTIONS, sabotage("removed", 8))
        assert code == 1, out + err
        (line,) = err.splitlines()
        assert GONE in line
        assert list((disk.path / "runs").iterdir()) == []
        code, out, err = disk.run(*OPTIONS, sabotage("removed", 8))
        assert code == 0, out + err
        assert "Continuing" not in out


def test_unwritable_log_is_reported_once_and_blocks_nothing():
    told = []
    log = Log(Path("/dev/full"), told.append)
    for _ in range(3):
        log.write(b"a line\n")
    log.close()
    assert told == [f"/dev/full could not be written: {NO_SPACE}"]
