"""Checkpoints that can be trusted: whatever is damaged, the newest whole one is restored, or the run says that there is none."""

import concurrent.futures
import errno
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

from tests.training import train
from trainer.checkpoint import Checkpoints, restore_weights
from trainer.errors import CheckpointError
from trainer.markers import committed, marker
from trainer.policies import Best, EveryNth, Newest


def state(value, names=("a", "b"), shape=(3,)):
    weights = {name: tf.Variable(tf.fill(shape, float(value) + number), name=name) for number, name in enumerate(names)}
    return {"step": tf.Variable(value, dtype=tf.int64, name="step"), "weights": weights}


def values(trackables):
    return {
        "step": int(trackables["step"].numpy()),
        **{name: variable.numpy().tolist() for name, variable in trackables["weights"].items()},
    }


def save(directory, *steps, metrics=None, keep=()):
    """Saves a state that tells its step, as each of some steps."""
    for step in steps:
        Checkpoints(directory, state(step), keep).save(step, metrics)


def restored(directory):
    """Restores into a fresh state; gives step, state and what was skipped."""
    trackables = state(0)
    made = Checkpoints(directory, trackables)
    return made.restore_latest(), values(trackables), made.skipped


def data_file(directory, step):
    return directory / f"ckpt-{step}.data-00000-of-00001"


def test_what_was_saved_is_restored(tmp_path):
    save(tmp_path, 5)
    assert restored(tmp_path) == (5, {"step": 5, "a": [5.0] * 3, "b": [6.0] * 3}, [])


def test_no_checkpoint_is_a_fresh_start(tmp_path):
    assert restored(tmp_path / "none") == (None, values(state(0)), [])


def test_the_marker_holds_step_metrics_sizes_and_hashes(tmp_path):
    save(tmp_path, 5, metrics={"accuracy": 0.5})
    content = json.loads((tmp_path / "ckpt-5.json").read_text())
    assert (content["step"], content["metrics"]) == (5, {"accuracy": 0.5})
    assert sorted(content["files"]) == ["ckpt-5.data-00000-of-00001", "ckpt-5.index"]
    assert content["files"]["ckpt-5.index"]["bytes"] == (tmp_path / "ckpt-5.index").stat().st_size
    assert sorted(os.listdir(tmp_path)) == ["ckpt-5.data-00000-of-00001", "ckpt-5.index", "ckpt-5.json"]


def test_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 10, 20):
        save(tmp_path, step, keep=[Newest(2)])
    assert committed(tmp_path) == [10, 20]
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"ckpt-10", "ckpt-20"}


@pytest.mark.parametrize(
    ("mode", "keep", "best", "kept"), [("max", 1, [2], [2, 5]), ("min", 1, [4], [4, 5]), ("max", 2, [2, 3], [2, 3, 5])]
)
def test_the_best_are_kept_besides(tmp_path, mode, keep, best, kept):
    policies = [Newest(1), Best("accuracy", mode, keep)]
    for step, accuracy in enumerate([0.5, 0.9, 0.7, 0.2, 0.6], start=1):
        save(tmp_path, step, metrics={"accuracy": accuracy}, keep=policies)
    assert Checkpoints(tmp_path, {}, policies).best() == best
    assert committed(tmp_path) == kept


def test_neither_a_missing_metric_nor_one_that_is_no_number_is_best(tmp_path):
    policies = [Best("loss", "min", 9)]
    for step, metrics in enumerate([None, {"loss": float("nan")}, {"loss": 2.0}, {"accuracy": 1.0}, {"loss": 1.0}], start=1):
        save(tmp_path, step, metrics=metrics, keep=policies)
    assert Checkpoints(tmp_path, {}, policies).best() == [5, 3]


def test_every_nth_is_kept_for_good(tmp_path):
    save(tmp_path, *range(1, 9), keep=[Newest(2), EveryNth(3)])
    assert committed(tmp_path) == [3, 6, 7, 8]


def test_the_marker_describes_every_variable(tmp_path):
    save(tmp_path, 5)
    variables = json.loads((tmp_path / "ckpt-5.json").read_text())["variables"]
    crc = f"{zlib.crc32(np.full(3, 6.0, np.float32).tobytes()):08x}"
    assert sorted(variables) == ["step", "weights/a", "weights/b"]
    assert variables["weights/b"] == {"shape": [3], "dtype": "float32", "crc32": crc}


def hook_that_waits():
    """Gives a hook that stops the writing, an event that says that it is reached, and one that lets it go on."""
    reached, released = threading.Event(), threading.Event()

    def hook():
        reached.set()
        assert released.wait(60)

    return hook, reached, released


def test_in_the_background_the_state_of_the_moment_is_written_while_training_goes_on(tmp_path):
    hook, reached, released = hook_that_waits()
    trackables, counts = state(1), []
    made = Checkpoints(tmp_path, trackables, background=True, before_commit=hook, after_commit=counts.append)
    made.save(1, None)
    trackables["step"].assign(2)
    trackables["weights"]["a"].assign_add([1.0] * 3)
    assert reached.wait(60)
    assert committed(tmp_path) == counts == []
    released.set()
    made.wait()
    assert committed(tmp_path) == counts == [1]
    assert restored(tmp_path)[1] == values(state(1))


def test_the_fused_updates_leave_a_snapshot_alone(tmp_path):
    hook, _, released = hook_that_waits()
    variable, slots = tf.Variable(tf.ones([4])), [tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))]
    made = Checkpoints(tmp_path, {"x": variable, "slots": slots}, background=True, before_commit=hook)
    made.save(1, None)
    for _ in range(3):
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=slots[0].handle, v=slots[1].handle, beta1_power=0.9, beta2_power=0.99, lr=0.1, beta1=0.9, beta2=0.99,
            epsilon=1e-7, grad=tf.ones([4]),
        )  # fmt: skip
    released.set()
    made.wait()
    assert not np.allclose(variable, 1.0)
    made.restore(1)
    np.testing.assert_array_equal([variable, *slots], [[1.0] * 4, [0.0] * 4, [0.0] * 4])


def test_a_write_that_fails_in_the_background_is_told_and_leaves_the_older_ones(tmp_path):
    save(tmp_path, 1)

    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    made = Checkpoints(tmp_path, state(2), background=True, before_commit=full)
    made.save(2, None)
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 2 could not be written to .*: .*No space left on device"):
        made.save(3, None)
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"ckpt-1"}
    made.save(3, None)
    concurrent.futures.wait([made._writing])
    with pytest.raises(CheckpointError, match="the checkpoint of step 3"):
        made.check()
    made.check()


def test_a_checkpoint_in_the_background_does_not_count_before_its_marker(tmp_path):
    hook, reached, released = hook_that_waits()
    save(tmp_path, 1)
    made = Checkpoints(tmp_path, state(2), [Newest(1)], background=True, before_commit=hook)
    made.save(2, None)
    assert reached.wait(60)
    # What a kill at this moment would leave.
    shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    released.set()
    made.wait()
    assert restored(tmp_path.with_name("killed"))[0] == 1
    assert committed(tmp_path) == [2]


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
    "marker missing": (remove_marker, "it has no marker: it was not finished, or the marker was removed"),
    "marker empty": (marker_with(b""), "its marker is damaged"),
    "marker no text": (marker_with(b"\xff\x00\xfe"), "its marker is damaged"),
    "marker cut off": (marker_with(b'{"step": 2, "metr'), "its marker is damaged"),
    "marker no mapping": (marker_with(b"[1, 2]"), "its marker is damaged"),
    "marker null": (marker_with(b"null"), "its marker is damaged"),
    "marker without files": (marker_with(b'{"step": 2, "metrics": {}, "files": {}}'), "its marker is damaged"),
    "marker without sizes": (marker_with(b'{"step": 2, "metrics": {}, "files": {"ckpt-2.index": 3}}'), "its marker is damaged"),
    "marker of another step": (marker_of_another_step, "its marker is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path, damage):
    save(tmp_path, 1, 2)
    size = data_file(tmp_path, 2).stat().st_size
    inflict, problem = DAMAGES[damage]
    inflict(tmp_path, 2)
    step, found, skipped = restored(tmp_path)
    assert (step, found) == (1, values(state(1)))
    assert skipped == [f"skipped the checkpoint of step 2: {problem.format(size=size, less=size - 1)}"]


def test_if_none_can_be_trusted_nothing_starts_afresh(tmp_path):
    save(tmp_path, 1, 2)
    flip_a_bit(tmp_path, 1)
    remove_data(tmp_path, 2)
    with pytest.raises(CheckpointError) as caught:
        restored(tmp_path)
    assert str(caught.value) == (
        f"no checkpoint in {tmp_path} can be trusted (skipped the checkpoint of step 2: {DATA} is missing; "
        "skipped the checkpoint of step 1: the content of ckpt-1.data-00000-of-00001 has changed); "
        "bring one back, or start afresh with resume=never"
    )


def test_damaged_checkpoints_do_not_push_the_good_ones_out(tmp_path):
    save(tmp_path, 1, 5, 6)
    flip_a_bit(tmp_path, 5)
    flip_a_bit(tmp_path, 6)
    trackables = state(0)
    made = Checkpoints(tmp_path, trackables, [Newest(2)])
    assert made.restore_latest() == 1
    assert made.steps() == [1, 5, 6]
    made.save(2, None)
    assert made.steps() == [1, 2]
    assert restored(tmp_path)[0] == 2


def test_a_damaged_checkpoint_is_written_again(tmp_path):
    save(tmp_path, 1, 2)
    truncate(tmp_path, 2)
    trackables = state(0)
    made = Checkpoints(tmp_path, trackables)
    made.restore_latest()
    trackables["step"].assign(77)
    made.save(2, None)
    assert restored(tmp_path)[1]["step"] == 77


class Killed(BaseException):
    """Stands for the end of a process: nothing cleans up after it."""


def killed_in(monkeypatch, directory, name, count):
    """Saves another state of step 2, keeping one; a kill comes before the `count`th change of a file by `name`."""
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
        Checkpoints(directory, other, [Newest(1)]).save(2, {"accuracy": 0.5})


@pytest.mark.parametrize(("name", "count"), [("open", 1), ("unlink", 1), ("replace", 1), ("replace", 2), ("replace", 3), ("replace", 9)])
def test_a_checkpoint_that_is_saved_again_is_there_at_any_moment(tmp_path, monkeypatch, name, count):
    save(tmp_path, 2)
    old, new = values(state(2)), {**values(state(7)), "step": 2}
    try:
        killed_in(monkeypatch, tmp_path, name, count)
        whole = True
    except Killed:
        whole = name != "open"
    assert restored(tmp_path) == (2, new if whole else old, [])
    assert sorted(os.listdir(tmp_path)) == ["ckpt-2.data-00000-of-00001", "ckpt-2.index", "ckpt-2.json"]
    assert marker(tmp_path, 2)["metrics"] == ({"accuracy": 0.5} if whole else {})


def test_what_a_kill_left_unfinished_goes_at_the_next_save(tmp_path):
    save(tmp_path, 1, 2)
    remove_marker(tmp_path, 2)
    (tmp_path / "ckpt-7.index").write_text("half")
    save(tmp_path, 3)
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"ckpt-1", "ckpt-3"}


def test_a_failed_write_leaves_the_older_ones(tmp_path):
    directory = tmp_path / "checkpoints"
    save(directory, 1, 2)
    made = Checkpoints(directory, state(3), [Newest(1)])
    directory.rename(tmp_path / "aside")
    directory.write_text("a file where the directory was")
    with pytest.raises(CheckpointError) as caught:
        made.save(3, None)
    assert str(caught.value).startswith(f"the checkpoint of step 3 could not be written to {directory}: ")
    assert "\n" not in str(caught.value)
    directory.unlink()
    (tmp_path / "aside").rename(directory)
    assert restored(directory)[0] == 2
    assert committed(directory) == [1, 2]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (state(0, ("a", "b", "c")), "it lacks c"),
        (state(0, ("a",)), "it has weights.b, which nothing here claims"),
        (
            state(0, shape=(4,)),
            "Received incompatible tensor with shape (3,) when attempting to restore variable with shape (4,) and name a:0.",
        ),
    ],
    ids=["more", "less", "shape"],
)
def test_another_set_of_variables_is_refused_by_name(tmp_path, other, message):
    save(tmp_path, 5)
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path, other).restore_latest()
    assert str(caught.value) == f"the checkpoint of step 5 does not fit this experiment: {message}"


def model(units=2, layers=1):
    shape = tf.keras.Input((3,))
    x = shape
    for number in range(layers):
        x = tf.keras.layers.Dense(units, name=f"dense_{number}")(x)
    return tf.keras.Model(shape, x)


def save_model(directory, step, *, averages=None):
    saved = model()
    tracked = {"models": {"model": saved}, "step": tf.Variable(step), "averages": {} if averages is None else {"model": averages}}
    Checkpoints(directory, tracked).save(step, None)
    return [weight.copy() for weight in saved.get_weights()]


def assert_weights(got, expected):
    for a, b in zip(got.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_come_from_a_run_or_from_one_of_its_checkpoints(tmp_path):
    first = save_model(tmp_path / "checkpoints", 1)
    second = save_model(tmp_path / "checkpoints", 2)
    fresh = model()
    assert restore_weights(tmp_path, {"model": fresh}) == (2, [])
    assert_weights(fresh, second)
    assert restore_weights(tmp_path / "checkpoints" / "ckpt-1", {"model": fresh}) == (1, [])
    assert_weights(fresh, first)


def test_weights_of_a_damaged_checkpoint_are_not_taken(tmp_path):
    first = save_model(tmp_path / "checkpoints", 1)
    save_model(tmp_path / "checkpoints", 2)
    flip_a_bit(tmp_path / "checkpoints", 2)
    fresh = model()
    why = "skipped the checkpoint of step 2: the content of ckpt-2.data-00000-of-00001 has changed"
    assert restore_weights(tmp_path, {"model": fresh}) == (1, [why])
    assert_weights(fresh, first)
    prefix = tmp_path / "checkpoints" / "ckpt-2"
    with pytest.raises(CheckpointError) as caught:
        restore_weights(prefix, {"model": fresh})
    assert str(caught.value) == f"init_from ({prefix}): there is no checkpoint that verifies"


def test_averaged_weights_are_taken_if_there_are_any(tmp_path):
    averages = [tf.Variable(tf.fill((3, 2), 7.0)), tf.Variable(tf.fill((2,), 8.0))]
    save_model(tmp_path / "checkpoints", 1, averages=averages)
    fresh = model()
    restore_weights(tmp_path, {"model": fresh})
    assert_weights(fresh, [variable.numpy() for variable in averages])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"layers": 2}, "it lacks dense_1/bias, dense_1/kernel"),
        ({"units": 4}, "shape (2,) when attempting to restore variable with shape (4,) and name dense_0/bias:0."),
    ],
)
def test_weights_of_another_model_are_refused_by_name(tmp_path, other, named):
    save_model(tmp_path / "checkpoints", 1)
    with pytest.raises(CheckpointError) as caught:
        restore_weights(tmp_path, {"model": model(**other)})
    assert str(caught.value).startswith(f"init_from ({tmp_path}): the checkpoint of step 1 does not fit this model: ")
    assert named in str(caught.value)


def test_no_run_there_has_no_weights(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        restore_weights(tmp_path, {"model": model()})
    assert str(caught.value) == f"init_from ({tmp_path}): there is no checkpoint that verifies"


def test_a_checkpoint_claims_only_the_metrics_of_its_own_step(tmp_path):
    options = ["evaluate.every_steps=4", "evaluate.every_epochs=null", "checkpoint.every_secs=0.000001", "checkpoint.keep=99"]
    train(tmp_path, *options, "train.steps_per_loop=1")
    metrics = {step: marker(tmp_path / "checkpoints", step)["metrics"] for step in range(1, 9)}
    assert [step for step in metrics if metrics[step]] == [4, 8]
    assert metrics[4].keys() == {"loss", "accuracy"}
