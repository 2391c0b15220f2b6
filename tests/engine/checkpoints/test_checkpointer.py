"""Checkpoints: whatever is damaged, the newest sound one is restored, or the run fails."""

import concurrent.futures
import errno
import hashlib
import itertools
import json
import os
import shutil
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import train
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import committed_steps, read_marker
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


def data_file(directory, step):
    return directory / f"ckpt-{step}.data-00000-of-00001"


def test_checkpoint_with_a_variable_of_a_former_version_fits(tmp_path):
    Checkpointer(tmp_path, {**state(5), "peak": tf.Variable(3.0)}).save(5, None)
    trackables = state(0)
    checkpointer = Checkpointer(tmp_path, trackables)
    assert checkpointer.restore_latest() == 5
    assert values(trackables) == values(state(5))
    checkpointer.save(6, None)
    assert "peak" not in read_marker(tmp_path, 6)["variables"]


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
    assert sorted(os.listdir(tmp_path)) == [
        "ckpt-5.data-00000-of-00001",
        "ckpt-5.index",
        "ckpt-5.json",
    ]


def blocking_hook():
    """Return a hook that blocks the write, an event set when it is reached, and its release."""
    reached, released = threading.Event(), threading.Event()

    def hook():
        reached.set()
        assert released.wait(60)

    return hook, reached, released


def test_background_save_writes_state_of_its_step_while_training_continues(tmp_path):
    hook, reached, released = blocking_hook()
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


def test_fused_updates_do_not_change_pending_snapshot(tmp_path):
    hook, _, released = blocking_hook()
    variable = tf.Variable(tf.ones([4]))
    slots = [tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))]
    trackables = {"x": variable, "slots": slots}
    checkpointer = Checkpointer(tmp_path, trackables, background=True)
    checkpointer.before_commit = hook
    checkpointer.save(1, None)
    for _ in range(3):
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=0.9,
            beta2_power=0.99,
            lr=0.1,
            beta1=0.9,
            beta2=0.99,
            epsilon=1e-7,
            grad=tf.ones([4]),
        )
    released.set()
    checkpointer.wait()
    assert not np.allclose(variable, 1.0)
    checkpointer.restore(1)
    np.testing.assert_array_equal([variable, *slots], [[1.0] * 4, [0.0] * 4, [0.0] * 4])


def test_write_goes_on_in_the_background_only_if_its_state_is_held_until_it_is_committed(tmp_path):
    hook, reached, released = blocking_hook()
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
    with pytest.raises(
        CheckpointError,
        match=r"the checkpoint of step 2 could not be written to .*: .*No space left on device",
    ):
        checkpointer.save(3, None)
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"ckpt-1"}
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


def truncate(directory, step):
    file = data_file(directory, step)
    os.truncate(file, file.stat().st_size - 1)


def flip_a_bit(directory, step):
    content = bytearray(data_file(directory, step).read_bytes())
    content[len(content) // 2] ^= 1
    data_file(directory, step).write_bytes(content)


def remove_data(directory, step):
    data_file(directory, step).unlink()


def remove_index(directory, step):
    (directory / f"ckpt-{step}.index").unlink()


def remove_marker(directory, step):
    (directory / f"ckpt-{step}.json").unlink()


def marker_with(content):
    def damage(directory, step):
        (directory / f"ckpt-{step}.json").write_bytes(content)

    return damage


def marker_of_another_step(directory, step):
    shutil.copy(directory / "ckpt-1.json", directory / f"ckpt-{step}.json")


DATA = "ckpt-2.data-00000-of-00001"
DAMAGES = {
    "truncated": (truncate, f"{DATA} has {{less}} bytes instead of {{size}}"),
    "a bit flipped": (flip_a_bit, f"the content of {DATA} has changed"),
    "data missing": (remove_data, f"{DATA} is missing"),
    "index missing": (remove_index, "ckpt-2.index is missing"),
    "marker missing": (
        remove_marker,
        "it has no marker: it was not finished, or the marker was removed",
    ),
    "marker empty": (marker_with(b""), "its marker is damaged"),
    "marker cut off": (marker_with(b'{"step": 2, "metr'), "its marker is damaged"),
    "marker without sizes": (
        marker_with(b'{"step": 2, "metrics": {}, "files": {"ckpt-2.index": 3}}'),
        "its marker is damaged",
    ),
    "marker of another step": (marker_of_another_step, "its marker is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_restore_latest_skips_damaged_checkpoint(tmp_path, damage):
    save(tmp_path, 1, 2)
    size = data_file(tmp_path, 2).stat().st_size
    inflict, problem = DAMAGES[damage]
    inflict(tmp_path, 2)
    step, content, skipped = restored(tmp_path)
    assert (step, content) == (1, values(state(1)))
    assert skipped == [
        f"skipped the checkpoint of step 2: {problem.format(size=size, less=size - 1)}"
    ]


def test_restore_latest_fails_if_all_checkpoints_are_damaged(tmp_path):
    save(tmp_path, 1, 2)
    flip_a_bit(tmp_path, 1)
    remove_data(tmp_path, 2)
    with pytest.raises(CheckpointError) as caught:
        restored(tmp_path)
    assert str(caught.value) == (
        f"no checkpoint in {tmp_path} can be trusted "
        f"(skipped the checkpoint of step 2: {DATA} is missing; "
        "skipped the checkpoint of step 1: the content of ckpt-1.data-00000-of-00001 has changed); "
        "bring one back, or start afresh with resume=never"
    )


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
    trackables = state(0)
    checkpointer = Checkpointer(tmp_path, trackables)
    checkpointer.restore_latest()
    trackables["step"].assign(77)
    checkpointer.save(2, None)
    assert restored(tmp_path)[1]["step"] == 77


class Killed(BaseException):
    """Simulates a kill: a BaseException, so that nothing cleans up after it."""


def killed_in(monkeypatch, directory, name, count):
    """Save another state of step 2; a kill comes before the `count`th call of `Path.<name>`."""
    calls = itertools.count(1)
    original = getattr(Path, name)

    def counted(self, *arguments, **options):
        if self.name.startswith(("ckpt-", "new-")) and next(calls) == count:
            raise Killed
        return original(self, *arguments, **options)

    other = state(7)
    other["step"].assign(2)
    with monkeypatch.context() as patched:
        patched.setattr(Path, name, counted)
        Checkpointer(directory, other, [KeepNewest(1)]).save(2, {"accuracy": 0.5})


@pytest.mark.parametrize(
    ("name", "count"), [("open", 1), ("unlink", 1), ("replace", 1), ("replace", 2), ("replace", 3)]
)
def test_second_save_of_a_step_always_leaves_a_whole_checkpoint(tmp_path, monkeypatch, name, count):
    save(tmp_path, 2)
    old, new = values(state(2)), {**values(state(7)), "step": 2}
    try:
        killed_in(monkeypatch, tmp_path, name, count)
        whole = True
    except Killed:
        whole = name != "open"
    assert restored(tmp_path) == (2, new if whole else old, [])
    assert sorted(os.listdir(tmp_path)) == [
        "ckpt-2.data-00000-of-00001",
        "ckpt-2.index",
        "ckpt-2.json",
    ]
    assert read_marker(tmp_path, 2)["metrics"] == ({"accuracy": 0.5} if whole else {})


def test_restore_removes_what_a_kill_left_of_a_removal(tmp_path):
    save(tmp_path, 1, 2, 3)
    remove_marker(tmp_path, 2)
    assert restored(tmp_path)[0] == 3
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"ckpt-1", "ckpt-3"}


def test_next_save_removes_unfinished_checkpoints(tmp_path):
    save(tmp_path, 1, 2)
    remove_marker(tmp_path, 2)
    (tmp_path / "ckpt-7.index").write_text("half")
    save(tmp_path, 3)
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"ckpt-1", "ckpt-3"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (state(0, ("a", "b", "c")), "it lacks c"),
        (state(0, ("a",)), "it has weights.b, which this experiment lacks"),
        (
            state(0, shape=(4,)),
            "Received incompatible tensor with shape (3,) when attempting to restore variable "
            "with shape (4,) and name a:0.",
        ),
    ],
    ids=["more", "less", "shape"],
)
def test_restore_names_variables_that_do_not_match(tmp_path, other, message):
    save(tmp_path, 5)
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(tmp_path, other).restore_latest()
    assert str(caught.value) == f"the checkpoint of step 5 does not fit this experiment: {message}"


@pytest.mark.slow
def test_checkpoint_has_only_metrics_of_its_own_step(tmp_path):
    options = [
        "evaluate.every_steps=4",
        "evaluate.every_epochs=null",
        "checkpoint.every_secs=0.000001",
        "checkpoint.keep=99",
    ]
    train(tmp_path, *options, "train.steps_per_loop=1")
    metrics = {step: read_marker(tmp_path / "checkpoints", step)["metrics"] for step in range(1, 9)}
    assert [step for step in metrics if metrics[step]] == [4, 8]
    assert metrics[4].keys() == {"loss", "accuracy"}


def test_restore_names_the_checkpoint_by_its_marker(tmp_path):
    calls = []
    checkpointer = Checkpointer(tmp_path, state(3))
    checkpointer.before_restore = lambda *call: calls.append(call)
    assert checkpointer.restore_latest() is None
    checkpointer.save(3, None)
    checkpointer.restore_latest()
    assert calls == [(3, hashlib.sha256((tmp_path / "ckpt-3.json").read_bytes()).hexdigest())]
