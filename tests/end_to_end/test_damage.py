"""Damaged checkpoints: the run continues from the newest whole one, or says why it cannot."""

import shutil

import pytest

from tests.support import training
from tests.support.training import assert_same_bits
from trainer.errors import CheckpointError

SAVING = [
    "checkpoint.every_steps=2", "checkpoint.every_epochs=null", "checkpoint.keep=9",
    "train.steps_per_loop=1", "optimizer=sgd",
]  # fmt: skip


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with checkpoints of steps 2, 4 and 6."""
    directory = tmp_path_factory.mktemp("stopped")
    training.train(directory, *SAVING, stop=lambda engine: engine.step == 6)
    return directory


@pytest.fixture
def run_dir(stopped, tmp_path):
    """A copy of the run with three checkpoints."""
    return shutil.copytree(stopped, tmp_path / "run")


def no_markers(place):
    for file in place.glob("*.json"):
        file.unlink()


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (no_markers, "skipped the checkpoint of step 2: it has no marker"),
        (shutil.rmtree, "none is there, though the run has saved some"),
    ],
)
def test_run_that_has_saved_never_starts_over_by_itself(run_dir, lose, why):
    lose(run_dir / "checkpoints")
    left = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError) as caught:
        training.train(run_dir, *SAVING)
    assert why in str(caught.value)
    assert str(caught.value).endswith("bring one back, or start afresh with resume=never")
    assert {path: path.read_bytes() for path in left if path.name != "ledger.jsonl"} == {
        path: content for path, content in left.items() if path.name != "ledger.jsonl"
    }


def test_run_with_a_truncated_first_checkpoint_begins_again(run_dir):
    for file in run_dir.iterdir():
        if file.name != "checkpoints":
            file.unlink() if file.is_file() else shutil.rmtree(file)
    no_markers(run_dir / "checkpoints")
    assert_same_bits(training.train(run_dir, *SAVING), training.trained(*SAVING).variables)
