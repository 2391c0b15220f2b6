"""Checkpoints: with any damage, the newest sound one is restored, or the run fails.

Snapshots, of which they are written, have the files of `tf.train.Checkpoint.write`, with the values
of one moment. test_power_cut.py ends saves at any point.
"""

import concurrent.futures
import errno
import hashlib
import json
import os
import re
import shutil
import threading
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import mirrored
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.snapshot import SnapshotReader
from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.checkpoint_retention import KeepNewest


def state(value, names=("a", "b"), shape=(3,)):
    weights = {
        name: tf.Variable(tf.fill(shape, float(value) + number), name=name)
        for number, name in enumerate(names)
    }
    return {"step": tf.Variable(value, dtype=tf.int64, name="step"), "weights": weights}


def values(trackables):
    return {
        "step": int(trackables["step"].numpy()),
        **{name: variable.numpy().tolist() for name, variable in trackables["weights"].items()},
    }


def save(directory, *steps, metrics=None, keep=()):
    """Save, for each of some steps, a state whose values follow from the step."""
    for step in steps:
        Checkpointer(directory, state(step), keep).save(step, metrics)


def restored(directory):
    """Restore into a fresh state; return its step, its values, and the skipped checkpoints."""
    trackables = state(0)
    checkpointer = Checkpointer(directory, trackables)
    return checkpointer.restore_latest(), values(trackables), checkpointer.skipped


DATA = "ckpt-2.data-00000-of-00001"
FILES_OF_2 = [DATA, "ckpt-2.index", "ckpt-2.json"]


def names(directory):
    return sorted(os.listdir(directory))


def test_marker_holds_step_metrics_sizes_hashes_and_variables(tmp_path):
    save(tmp_path, 5, metrics={"accuracy": 0.5})
    assert restored(tmp_path) == (5, {"step": 5, "a": [5.0] * 3, "b": [6.0] * 3}, [])
    content = json.loads((tmp_path / "ckpt-5.json").read_text())
    crc = f"{zlib.crc32(np.full(3, 6.0, np.float32).tobytes()):08x}"
    assert sorted(content["variables"]) == ["step", "weights/a", "weights/b"]
    assert content["variables"]["weights/b"] == {"shape": [3], "dtype": "float32", "crc32": crc}
    assert (content["step"], content["metrics"]) == (5, {"accuracy": 0.5})
    assert sorted(content["files"]) == ["ckpt-5.data-00000-of-00001", "ckpt-5.index"]
    assert content["files"]["ckpt-5.index"]["bytes"] == (tmp_path / "ckpt-5.index").stat().st_size
    assert names(tmp_path) == [file.replace("2", "5") for file in FILES_OF_2]


@pytest.fixture
def blocked():
    """Return a function that blocks the writes of a checkpointer, and the events around them."""
    reached, released = threading.Event(), threading.Event()

    def hook():
        reached.set()
        assert released.wait(60)

    return hook, reached, released


def test_background_save_writes_state_of_its_step_while_training_continues(tmp_path, blocked):
    hook, reached, released = blocked
    save(tmp_path, 1)
    trackables = state(2)
    checkpointer = Checkpointer(tmp_path, trackables, [KeepNewest(1)], background=True)
    checkpointer.before_commit = hook
    checkpointer.save(2, None)
    trackables["step"].assign(3)
    trackables["weights"]["a"].assign_add([1.0] * 3)
    assert reached.wait(60)
    # What a kill at this moment would leave: it does not count before its marker.
    shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    released.set()
    checkpointer.wait()
    assert restored(tmp_path.with_name("killed"))[0] == 1
    assert committed_steps(tmp_path) == [2]
    assert restored(tmp_path)[1] == values(state(2))


def test_fused_updates_do_not_change_pending_snapshot(tmp_path, blocked):
    hook, _, released = blocked
    variable = tf.Variable(tf.ones([4]))
    slots = [tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))]
    trackables = {"x": variable, "slots": slots}
    checkpointer = Checkpointer(tmp_path, trackables, background=True)
    checkpointer.before_commit = hook
    checkpointer.save(1, None)
    rates = {"beta1_power": 0.9, "beta2_power": 0.99, "lr": 0.1, "beta1": 0.9, "beta2": 0.99}
    handles = {"var": variable.handle, "m": slots[0].handle, "v": slots[1].handle}
    for _ in range(3):
        tf.raw_ops.ResourceApplyAdam(**handles, **rates, epsilon=1e-7, grad=tf.ones([4]))
    released.set()
    checkpointer.wait()
    assert not np.allclose(variable, 1.0)
    checkpointer.restore(1)
    np.testing.assert_array_equal([variable, *slots], [[1.0] * 4, [0.0] * 4, [0.0] * 4])


def test_write_continues_in_the_background_only_if_its_state_is_held_until_the_commit(
    tmp_path, blocked
):
    hook, reached, released = blocked
    checkpointer = Checkpointer(tmp_path, state(1), background=None)
    checkpointer.before_commit = hook
    holding = []

    def hold(snapshot):
        holding.append("held")
        return lambda: holding.append(committed_steps(tmp_path))

    checkpointer.save(1, None, hold)
    assert reached.wait(60)
    assert (checkpointer.is_writing, holding) == (True, ["held"])
    released.set()
    checkpointer.wait()
    assert holding == ["held", [1]]
    checkpointer.save(2, None, lambda snapshot: None)
    assert not checkpointer.is_writing
    assert committed_steps(tmp_path) == [1, 2]


def test_failed_background_write_is_reported_and_leaves_older_checkpoints(tmp_path):
    save(tmp_path, 1)

    def full_disk():
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpointer = Checkpointer(tmp_path, state(2), background=True)
    checkpointer.before_commit = full_disk
    checkpointer.save(2, None)
    with pytest.raises(CheckpointError, match=r"of step 2 could not be written .*No space left"):
        checkpointer.save(3, None)
    assert {name.split(".")[0] for name in names(tmp_path)} == {"ckpt-1"}
    checkpointer.save(3, None)
    concurrent.futures.wait([checkpointer._writing])
    with pytest.raises(CheckpointError, match="the checkpoint of step 3"):
        checkpointer.check()
    checkpointer.check()


@pytest.mark.parametrize("at", ["hook", "rename"])
def test_write_that_fails_once_is_repeated(tmp_path, monkeypatch, caplog, at):
    def stale(*arguments):
        monkeypatch.undo()
        hooks.pop("hook", None)
        raise OSError(errno.ESTALE, "Stale file handle")

    hooks = {"hook": stale} if at == "hook" else {}
    if at == "rename":
        monkeypatch.setattr(os, "replace", stale)
    checkpointer = Checkpointer(tmp_path, state(2), background=True)
    checkpointer.before_commit = lambda: hooks.get("hook", list)()
    released = threading.Event()
    checkpointer.save(2, None, lambda snapshot: released.set)
    checkpointer.wait()
    assert committed_steps(tmp_path) == [2]
    assert released.is_set()
    assert "Stale file handle; trying again in 0.1 s" in caplog.text


def damaged(name, change):
    """Return what changes the content of a file of a step."""

    def damage(directory, step):
        file = directory / name.replace("2", str(step), 1)
        file.write_bytes(change(file.read_bytes()))

    return damage


def removed(name):
    return lambda directory, step: (directory / name.replace("2", str(step), 1)).unlink()


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def marker(content):
    return damaged("ckpt-2.json", lambda _: content), "its marker is damaged"


flip_a_bit, remove_marker = damaged(DATA, flipped), removed("ckpt-2.json")
truncate = damaged(DATA, lambda content: content[:-1])


def marker_of_another_step(directory, step):
    shutil.copy(directory / "ckpt-1.json", directory / f"ckpt-{step}.json")


DAMAGES = {
    "truncated": (truncate, rf"{DATA} has \d+ bytes instead of \d+"),
    "a bit flipped": (flip_a_bit, f"the content of {DATA} has changed"),
    "data missing": (removed(DATA), f"{DATA} is missing"),
    "index missing": (removed("ckpt-2.index"), "ckpt-2.index is missing"),
    "marker missing": (remove_marker, "it has no marker: it was not finished, or .* removed"),
    "marker empty": marker(b""),
    "marker cut off": marker(b'{"step": 2, "metr'),
    "marker without sizes": marker(b'{"step": 2, "metrics": {}, "files": {"ckpt-2.index": 3}}'),
    "marker of another step": (marker_of_another_step, "its marker is damaged"),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGES.values(), ids=DAMAGES)
def test_restore_latest_skips_damaged_checkpoint(tmp_path, damage, problem):
    save(tmp_path, 1, 2)
    damage(tmp_path, 2)
    step, content, (skipped,) = restored(tmp_path)
    assert (step, content) == (1, values(state(1)))
    assert re.fullmatch(f"skipped the checkpoint of step 2: {problem}", skipped)
    checkpointer = Checkpointer(tmp_path, trackables := state(0))
    assert re.fullmatch(problem, checkpointer.restore_chosen(2))
    assert checkpointer.restore_chosen(1) == ""
    assert values(trackables) == content


def test_restore_latest_fails_if_all_checkpoints_are_damaged(tmp_path):
    save(tmp_path, 1, 2)
    flip_a_bit(tmp_path, 1)
    removed(DATA)(tmp_path, 2)
    problem = rf"step 2: {DATA} is missing; .* step 1: the content .* changed.*resume=never$"
    with pytest.raises(CheckpointError, match=problem):
        restored(tmp_path)


def test_run_whose_checkpoints_are_gone_does_not_start_afresh(tmp_path):
    saved_once = tmp_path / ".saved"
    checkpointer = Checkpointer(tmp_path / "checkpoints", state(2), saved_once=saved_once)
    assert checkpointer.restore_latest() is None
    checkpointer.save(2, None)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="none is there, though the run has saved some"):
        checkpointer.restore_latest()


def test_retention_does_not_count_damaged_checkpoints(tmp_path):
    save(tmp_path, 1, 5, 6)
    flip_a_bit(tmp_path, 5)
    flip_a_bit(tmp_path, 6)
    trackables = state(0)
    checkpointer = Checkpointer(tmp_path, trackables, [KeepNewest(2)])
    assert checkpointer.restore_latest() == 1
    assert checkpointer.steps() == [1, 5, 6]
    checkpointer.save(2, None)
    assert checkpointer.steps() == [1, 2]
    assert restored(tmp_path)[0] == 2


def test_save_replaces_damaged_checkpoint(tmp_path):
    save(tmp_path, 1, 2)
    truncate(tmp_path, 2)
    checkpointer = Checkpointer(tmp_path, state(77))
    checkpointer.restore_latest()
    checkpointer.save(2, None)
    assert restored(tmp_path) == (2, values(state(1)), [])


def test_restore_removes_what_a_kill_left_of_a_removal_and_a_save_all_that_is_unfinished(tmp_path):
    save(tmp_path, 1, 2, 3)
    remove_marker(tmp_path, 2)
    (tmp_path / "ckpt-7.index").write_text("half")
    assert restored(tmp_path)[0] == 3
    assert {name.split(".")[0] for name in names(tmp_path)} == {"ckpt-1", "ckpt-3", "ckpt-7"}
    save(tmp_path, 4)
    assert {name.split(".")[0] for name in names(tmp_path)} == {"ckpt-1", "ckpt-3", "ckpt-4"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (state(0, ("a", "b", "c")), "it lacks c"),
        (state(0, ("a",)), "it has weights.b, which this experiment lacks"),
        (state(0, shape=(4,)), r"incompatible tensor with shape \(3,\) .*\(4,\) and name a:0"),
    ],
    ids=["more", "less", "shape"],
)
def test_restore_names_variables_that_do_not_match(tmp_path, other, message):
    save(tmp_path, 5)
    problem = rf"the checkpoint of step 5 does not fit this experiment: .*{message}"
    with pytest.raises(CheckpointError, match=problem):
        Checkpointer(tmp_path, other).restore_latest()


def test_restore_names_the_checkpoint_by_its_marker(tmp_path):
    calls = []
    checkpointer = Checkpointer(tmp_path, state(3))
    checkpointer.before_restore = lambda *call: calls.append(call)
    assert checkpointer.restore_latest() is None
    checkpointer.save(3, None)
    checkpointer.restore_latest()
    assert calls == [(3, hashlib.sha256((tmp_path / "ckpt-3.json").read_bytes()).hexdigest())]


def test_checkpoint_of_the_start_is_restored(tmp_path):
    save(tmp_path, 0)
    assert restored(tmp_path)[0] == 0


def content(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_files_equal_those_of_tensorflow(tmp_path):
    layers = [tf.keras.layers.Dense(4, input_shape=(3,)), tf.keras.layers.BatchNormalization()]
    model = tf.keras.Sequential(layers)

    def checkpoint_of(step, number):
        step, nested = tf.Variable(step, dtype=tf.int64), {"a": [tf.Variable(number)]}
        return tf.train.Checkpoint(model=model, step=step, nested=nested)

    checkpoint = checkpoint_of(7, 1.5)
    checkpoint.write(str(tmp_path / "theirs"))
    SnapshotReader(checkpoint).capture().write(str(tmp_path / "ours"))
    theirs, ours = content(tmp_path / "theirs"), content(tmp_path / "ours")
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(value, ours[name], err_msg=name)
    assert sorted(file.name for file in tmp_path.glob("ours*")) == [
        "ours.data-00000-of-00001",
        "ours.index",
    ]
    checkpoint_of(0, 0.0).read(str(tmp_path / "ours")).assert_consumed()


def test_mirrored_variable_is_written_once_and_on_read_variable_as_mean(tmp_path):
    strategy = mirrored(2)
    with strategy.scope():
        on_write = tf.Variable([1.0, 2.0])
        on_read = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
    for number, part in enumerate(strategy.experimental_local_results(on_read)):
        part.assign(float(number))
    snapshot = SnapshotReader(tf.train.Checkpoint(mirrored=on_write, on_read=on_read)).capture()
    snapshot.write(str(tmp_path / "x"))
    values = content(tmp_path / "x")
    np.testing.assert_array_equal(values["mirrored/.ATTRIBUTES/VARIABLE_VALUE"], [1.0, 2.0])
    assert values["on_read/.ATTRIBUTES/VARIABLE_VALUE"] == 0.5
    assert snapshot.variables()["mirrored"]["shape"] == [2]


@pytest.mark.parametrize(
    ("names", "problem"),
    [("x", "only the state in memory has y"), ("xyz", "only this experiment has z")],
)
def test_snapshot_of_other_objects_is_refused(names, problem):
    snapshot = SnapshotReader(tf.train.Checkpoint(x=tf.Variable(1.0), y=tf.Variable(2.0))).capture()
    others = {name: tf.Variable(0.0) for name in names}
    with pytest.raises(CheckpointError, match=f"does not fit this experiment: {problem};"):
        SnapshotReader(tf.train.Checkpoint(**others)).restore(snapshot.by_entry())
    assert others["x"].numpy() == 0.0
