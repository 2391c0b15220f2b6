"""Divergence: verdicts in the graph; stop, skip and rollback leave out the bad step alone.

The matrix of tests/end_to_end rolls back on every layout, in runs that are stopped and killed.
"""

import itertools
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import log
from tests.support.training import CENTRAL, TWO, assert_same_bits, lines_of, short_engine, variables
from trainer.config.schema import MAX_SKIPS, Divergence
from trainer.engine.graph.input.feed import SampleOrder, block_of
from trainer.engine.graph.step.update_check import DivergenceMonitor, LossWindow
from trainer.errors import NonFiniteError

LINEAR = ("model=softmax", "train.steps_per_loop=3", "checkpoint.every_epochs=null")
MOVING = (
    *LINEAR[1:], "model.width=4", "model.dropout=0", "model.batch_norm=true", "augment.crop=1",
)  # fmt: skip
"""Statistics that move, and augmentation; the model is the default, a CNN."""


def poison(*blocks):
    """Return overrides that put an example into some blocks whose loss is NaN."""
    order = SampleOrder(1437, 0)
    ids = [int(order.locate(tf.constant([16 * block + 3], tf.int64))[1][0]) for block in blocks]
    listed = ",".join(map(str, ids))
    return [f"+dataset.ids=[{listed}]", "dataset._target_=tests.support.toy_datasets.poisoned"]


def trained(run_dir, *overrides, **options):
    """Return an engine that has trained to its end."""
    training = short_engine(run_dir, *overrides, **options)
    assert training.train(lambda: False)
    return training


def learned(state):
    """Return the variables of models and optimizers."""
    return {
        name: value for name, value in state.items() if name.startswith(("/models", "/optimizers"))
    }


def without_blocks(run_dir, blocks, *overrides):
    """Train on clean data, in an order that leaves blocks out from the start."""
    clean = short_engine(run_dir, *overrides)
    clean.state.divergence_monitor.leave_out(blocks)
    assert clean.train(lambda: False)
    return variables(clean)


@pytest.mark.parametrize("left_out", [[], [0, 1, 2], [2, 4, 5, 9]])
def test_block_of_step_is_next_that_is_not_left_out(left_out):
    expected = list(
        itertools.islice((block for block in itertools.count() if block not in left_out), 20)
    )
    padded = left_out + [np.iinfo(np.int64).max] * (MAX_SKIPS - len(left_out))
    for blocks in (left_out, padded):
        steps = tf.range(20, dtype=tf.int64)
        actual = tf.function(block_of)(steps, tf.constant(blocks, tf.int64))
        assert actual.numpy().tolist() == expected
    assert [
        int(block_of(tf.constant(step, tf.int64), tf.constant(padded, tf.int64)))
        for step in range(20)
    ] == expected


def test_loss_window_limit_follows_newest_losses():
    losses, window, sigma = np.random.default_rng(0).normal(2.0, 0.3, 40).astype(np.float32), 7, 3.0
    ring = LossWindow(window)
    limit, add = tf.function(ring.limit), tf.function(ring.add)
    for number, loss in enumerate(losses):
        newest = losses[max(0, number - window) : number].astype(np.float64)
        expected = newest.mean() + sigma * newest.std() if number >= window else math.inf
        assert float(limit(sigma)) == pytest.approx(expected, rel=1e-6)
        add(tf.constant(99.0), tf.constant(False))
        add(tf.constant(loss), tf.constant(True))
    assert int(ring.count) == 40


@pytest.mark.parametrize(
    ("loss", "norm", "sigma", "problem"),
    [
        (0.5, 1.0, 2.0, ""),
        (3.0, 1.0, 2.0, "the loss jumped to 3 after 5 steps, where .*spike_sigma .2.0. allows 2.5"),
        (3.0, 1.0, None, ""),
        (math.nan, 1.0, None, "the loss became nan after 5 steps"),
        (0.5, math.inf, 2.0, "the norm of the gradient became inf after 5 steps"),
    ],
)
def test_monitor_accepts_finite_losses_below_limit(loss, norm, sigma, problem):
    optimizer = object()
    monitor = DivergenceMonitor(Divergence(spike_sigma=sigma, window=2), {"model": optimizer})
    for sound in (1.0, 2.0):
        numbers = (tf.constant(x) for x in (8.0 * sound, 8.0, 1.0))
        assert not monitor.check(optimizer, *numbers).is_bad
    verdict = monitor.check(optimizer, *(tf.constant(x) for x in (8.0 * loss, 8.0, norm)))
    assert bool(verdict.is_bad) == bool(problem)
    np.testing.assert_array_equal(verdict[1:], [loss, norm, math.inf if sigma is None else 2.5])
    assert int(monitor.windows["model"].count) == (0 if sigma is None else 2 + (not problem))
    assert not problem or re.fullmatch(problem, monitor.describe(5, verdict))


def test_loss_window_ignores_update_without_examples():
    optimizer = object()
    monitor = DivergenceMonitor(Divergence(spike_sigma=1.0, window=2), {"model": optimizer})
    zero = tf.constant(0.0)
    assert not monitor.check(optimizer, zero, zero, zero).is_bad
    assert int(monitor.windows["model"].count) == 0


@pytest.mark.slow
def test_stop_saves_no_bad_state(tmp_path):
    saves = ("checkpoint.every_steps=1", "checkpoint.keep=9")
    training = short_engine(tmp_path, *MOVING, *TWO, *saves, *poison(5))
    with pytest.raises(NonFiniteError, match=r"^the loss became nan after 5 steps; try a smaller"):
        training.train(lambda: False)
    assert training.checkpointer.steps() == [1, 2, 3, 4, 5]
    training.checkpointer.restore_latest()
    assert all(np.isfinite(value).all() for value in learned(variables(training)).values())


@pytest.mark.parametrize(
    "layout",
    [(), *(pytest.param(layout, marks=pytest.mark.slow) for layout in (TWO, CENTRAL))],
    ids=["one_device", "mirrored", "central_storage"],
)
def test_skip_drops_one_update_and_nothing_else(tmp_path, layout):
    skip = (
        *MOVING, *layout,
        "divergence.action=skip", "divergence.spike_sigma=99", "divergence.window=3",
    )  # fmt: skip
    run_dir = tmp_path / "skip"
    training = trained(run_dir, *skip, "summary.every_steps=4", *poison(5))
    # Seven updates on the same blocks.
    other = without_blocks(tmp_path / "other", [5], *skip, "train.steps=7")
    assert_same_bits(learned(variables(training)), learned(other))
    assert variables(training)["/guard/windows/model/count"] == 7
    lines = log(run_dir)
    reported = [line.get("updates_skipped") for line in lines if line["split"] == "train"]
    assert reported == [None, 1.0]
    assert all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.slow
def test_skipped_step_moves_no_average_and_no_loss_scale(tmp_path):
    skip = ("precision=mixed_float16", "train.ema_decay=0.5", "divergence.action=skip")
    training = short_engine(tmp_path, *MOVING, *skip, "train.steps=1", *poison(0))
    training.state.loss_scale.value.assign(8.0)
    before = variables(training)
    training.train(lambda: False)
    after = variables(training)
    for name in [*learned(before), *(name for name in before if name.startswith("/averages"))]:
        assert before[name].tobytes() == after[name].tobytes(), name
    assert after["/loss_scale/value"] == 8.0
    assert after["/guard/skipped"] == 1


@pytest.mark.slow
def test_rollback_equals_run_that_never_saw_the_samples(tmp_path):
    rollback = (
        *MOVING, "divergence.action=rollback", "checkpoint.every_steps=3", "summary.every_steps=2",
    )  # fmt: skip
    # When block 1 is left out, block 5 is that of step 4; without block 5, block 6 is.
    messages = []
    training = trained(tmp_path / "rollback", *rollback, *poison(1, 5, 6), receive=messages.append)
    assert training.state.divergence_monitor.blocks() == [1, 5, 6]
    assert_same_bits(without_blocks(tmp_path / "other", [1, 5, 6], *rollback), variables(training))
    logs = [
        [(line["step"], line["split"], line["loss"]) for line in log(tmp_path / name)]
        for name in ("rollback", "other")
    ]
    assert logs[0] == logs[1]
    lines = lines_of(messages)
    assert [line for line in lines if "Continuing" in line] == [
        f"Continuing from the checkpoint of step {step}." for step in (0, 3, 3)
    ]
    assert (
        "The loss became nan after 4 steps; rolling back, and leaving out the samples of step 4 "
        "(3 of at most 16)"
    ) in lines


NO_CHECKPOINT = ("rollback_steps=4", "checkpoint.every_steps=1", "checkpoint.keep=2")


@pytest.mark.parametrize(
    ("action", "blocks", "options", "end"),
    [
        ("rollback", [6], NO_CHECKPOINT, "6 steps, and there is no checkpoint of step 3 or before"),
        pytest.param("skip", [2, 4, 5], ["max_skips=2"], r"5 steps when .*max_skips \(2\) leaves",
                     marks=pytest.mark.slow),
        pytest.param("rollback", [2, 4, 5], ["max_skips=2"], r"3 steps when .*max_skips \(2\)",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_divergence_that_nothing_undoes_ends_run(tmp_path, action, blocks, options, end):
    chosen = [f"divergence.action={action}", f"divergence.{options[0]}", *options[1:]]
    training = short_engine(tmp_path, *LINEAR, *chosen, *poison(*blocks))
    with pytest.raises(NonFiniteError, match=f"^the loss became nan after {end}"):
        training.train(lambda: False)
