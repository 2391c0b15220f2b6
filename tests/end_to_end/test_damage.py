"""Damaged checkpoints: the run continues from the newest whole one, or says why it cannot."""

import os
import shutil
import signal

import pytest

from tests.support import training
from tests.support.processes import OPTIONS, final_variables, finished, only_run, run, signaler
from tests.support.training import assert_same_bits
from trainer.errors import CheckpointError
from trainer.files import read_json, write_json

SAVING = [
    "checkpoint.every_steps=2",
    "checkpoint.every_epochs=null",
    "checkpoint.keep=9",
    "train.steps_per_loop=1",
    "optimizer=sgd",
]
NEWEST = "ckpt-6"


def started(directory, *overrides):
    """Train until there are checkpoints of steps 2, 4 and 6."""
    training.train(directory, *SAVING, *overrides, stop=lambda made: made.step == 6)
    return directory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return started(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def run_dir(stopped, tmp_path):
    """A run of its own with three checkpoints."""
    return shutil.copytree(stopped, tmp_path / "run")


def data_of(place, name=NEWEST):
    return place / f"{name}.data-00000-of-00001"


def truncate(place):
    os.truncate(data_of(place), data_of(place).stat().st_size // 2)


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 4
    file.write_bytes(content)


def take_marker_of_another_run(place):
    marker = read_json(place / f"{NEWEST}.json")
    for file in marker["files"].values():
        file["sha256"] = file["sha256"][::-1]
    write_json(place / f"{NEWEST}.json", marker)


DAMAGES = {
    "truncated": (truncate, "data-00000-of-00001 has"),
    "a bit of the data": (lambda place: flip(data_of(place)), "data-00000-of-00001 has changed"),
    "a bit of the index": (lambda place: flip(place / f"{NEWEST}.index"), "index has changed"),
    "no data": (lambda place: data_of(place).unlink(), "data-00000-of-00001 is missing"),
    "no index": (lambda place: (place / f"{NEWEST}.index").unlink(), "index is missing"),
    "no marker": (lambda place: (place / f"{NEWEST}.json").unlink(), "it has no marker"),
    "half a marker": (
        lambda place: os.truncate(place / f"{NEWEST}.json", 40),
        "its marker is damaged",
    ),
    "the marker of another run": (take_marker_of_another_run, "has changed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_and_the_run_ends_the_same(run_dir, damage):
    inflict, why = DAMAGES[damage]
    inflict(run_dir / "checkpoints")
    made = training.engine(run_dir, *SAVING)
    made.train(lambda: False)
    assert_same_bits(training.variables(made), training.trained(*SAVING).variables)
    (line,) = made.checkpointer.skipped
    assert line.startswith("skipped the checkpoint of step 6: ")
    assert why in line
    assert made.checkpointer.steps() == [2, 4, 6, 8]


def all_truncated(place):
    for file in place.glob("*.data-*"):
        os.truncate(file, 10)


def no_markers(place):
    for file in place.glob("*.json"):
        file.unlink()


def empty(place):
    shutil.rmtree(place)
    place.mkdir()


LOSSES = {
    "all damaged": (
        all_truncated,
        "skipped the checkpoint of step 2: ckpt-2.data-00000-of-00001 has 10 bytes",
    ),
    "no marker at all": (no_markers, "skipped the checkpoint of step 2: it has no marker"),
    "emptied": (empty, "none is there, though the run has saved some"),
    "removed": (shutil.rmtree, "none is there, though the run has saved some"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_run_that_has_saved_never_starts_over_by_itself(run_dir, loss):
    lose, why = LOSSES[loss]
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


@pytest.mark.slow
def test_real_processes_skip_a_damaged_checkpoint(tmp_path):
    options = [*OPTIONS, "checkpoint.keep=2", "strategy=multi_worker"]
    stopper = signaler(tmp_path, [8], signal.SIGTERM, "supervisor")
    code, out, err = run(tmp_path, *options, stopper)
    assert code == 143, out + err
    place = only_run(tmp_path) / "checkpoints"
    kept = shutil.copytree(place, tmp_path / "kept")
    no_markers(place)
    code, out, err = run(tmp_path, *options, stopper)
    assert code == 1, out + err
    assert "no checkpoint in" in err
    assert "skipped the checkpoint of step 8: it has no marker" in err
    assert err.count("can be trusted") == 1
    shutil.copytree(kept, place, dirs_exist_ok=True)
    os.truncate(data_of(place, "ckpt-8"), 100)
    code, out, err = run(tmp_path, *options, stopper)
    assert code == 0, out + err
    assert (
        "warning: skipped the checkpoint of step 8: ckpt-8.data-00000-of-00001 has 100 bytes" in out
    )
    assert "Continuing from the checkpoint of step 6." in out
    assert_same_bits(final_variables(only_run(tmp_path)), final_variables(finished(*options)))
