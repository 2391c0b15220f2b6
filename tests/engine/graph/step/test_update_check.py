"""Divergence: verdicts in the graph; stop, skip and rollback leave out the bad step alone."""

import itertools
import math
import signal

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import final_variables, log, only_run, run, signaler
from tests.support.small_runs import SMALL
from tests.support.training import assert_same_bits, variables
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Line
from trainer.config.schema import MAX_SKIPS, Divergence
from trainer.engine.graph.input.feed import SampleOrder, block_of
from trainer.engine.graph.step.update_check import DivergenceMonitor, LossWindow
from trainer.errors import NonFiniteError
from trainer.worker.training import TrainingRun

ONE, TWO = ["strategy=one_device"], ["strategy=mirrored", "strategy.virtual_devices=2"]
CENTRAL = ["strategy=central_storage", "strategy.virtual_devices=2"]
slow = pytest.mark.slow
STRATEGIES = [pytest.param(ONE, id="one_device"), pytest.param(TWO, id="mirrored", marks=slow)]
QUICK = ["train.steps_per_loop=3", "checkpoint.every_epochs=null"]
LINEAR = ["model=softmax"]
MOVING = ["model.width=4", "model.dropout=0", "model.batch_norm=true", "augment.crop=1"]
"""Statistics that move, and augmentation; the model is the default, a CNN."""


def ids_of(*blocks):
    """Return the id of an example of each block of 16 digits."""
    order = SampleOrder(1437, 0)
    return [int(order.locate(tf.constant([16 * block + 3], tf.int64))[1][0]) for block in blocks]


def poison(*blocks, **options):
    """Return overrides that put an example into some blocks whose loss is NaN, or of `options`."""
    keys = {"ids": ids_of(*blocks), **options}
    return [
        *(f"+dataset.{key}={value}".replace(" ", "") for key, value in keys.items()),
        "dataset._target_=tests.support.toy_datasets.poisoned",
    ]


def engine_with_lines(run_dir, *overrides):
    """Build an engine; return it and the list of the lines that it writes for the user."""
    run_dir.mkdir(parents=True, exist_ok=True)
    lines = []
    channel = Channel(
        lambda message: lines.append(message.text) if isinstance(message, Line) else None
    )
    return TrainingRun(compose([*SMALL, *overrides]), run_dir, channel).engine, lines


def engine(run_dir, *overrides):
    """Build an engine."""
    return engine_with_lines(run_dir, *overrides)[0]


def learned(state):
    """Return the variables of models and optimizers."""
    return {
        name: value for name, value in state.items() if name.startswith(("/models", "/optimizers"))
    }


def losses(run_dir):
    """Return step, split and loss of each line of the log."""
    return [(line["step"], line["split"], line["loss"]) for line in log(run_dir)]


def without_blocks(run_dir, blocks, *overrides):
    """Train on clean data, in an order that leaves blocks out from the start."""
    clean = engine(run_dir, *overrides)
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
    ("loss", "norm", "sigma"),
    [
        (0.5, 1.0, 2.0),
        (3.0, 1.0, 2.0),
        (3.0, 1.0, None),
        (math.nan, 1.0, None),
        (0.5, math.inf, 2.0),
    ],
)
def test_monitor_accepts_finite_losses_below_limit(loss, norm, sigma):
    optimizer = object()
    monitor = DivergenceMonitor(Divergence(spike_sigma=sigma, window=2), {"model": optimizer})
    for sound in (1.0, 2.0):
        numbers = (tf.constant(x) for x in (8.0 * sound, 8.0, 1.0))
        assert not monitor.check(optimizer, *numbers).is_bad
    verdict = monitor.check(optimizer, *(tf.constant(x) for x in (8.0 * loss, 8.0, norm)))
    is_bad = not math.isfinite(loss + norm) or (sigma is not None and loss > 2.5)
    assert bool(verdict.is_bad) == is_bad
    np.testing.assert_array_equal(verdict[1:], [loss, norm, math.inf if sigma is None else 2.5])
    assert int(monitor.windows["model"].count) == (0 if sigma is None else 2 + (not is_bad))


def test_loss_window_ignores_update_without_examples():
    optimizer = object()
    monitor = DivergenceMonitor(Divergence(spike_sigma=1.0, window=2), {"model": optimizer})
    zero = tf.constant(0.0)
    assert not monitor.check(optimizer, zero, zero, zero).is_bad
    assert int(monitor.windows["model"].count) == 0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stop_saves_no_bad_state(tmp_path, strategy):
    options = [
        *QUICK,
        *MOVING,
        *strategy,
        "checkpoint.every_steps=1",
        "checkpoint.keep=9",
        *poison(5),
    ]
    training = engine(tmp_path, *options)
    with pytest.raises(
        NonFiniteError,
        match=r"^the loss became nan after 5 steps; try a smaller optimizer.learning_rate",
    ):
        training.train(lambda: False)
    assert training.checkpointer.steps() == [1, 2, 3, 4, 5]
    training.checkpointer.restore_latest()
    assert all(np.isfinite(value).all() for value in learned(variables(training)).values())


@pytest.mark.parametrize(
    "strategy", [*STRATEGIES, pytest.param(CENTRAL, id="central_storage", marks=slow)]
)
def test_skip_drops_one_update_and_nothing_else(tmp_path, strategy):
    skip = [
        *QUICK,
        *MOVING,
        *strategy,
        "divergence.action=skip",
        "divergence.spike_sigma=99",
        "divergence.window=3",
    ]
    training = engine(
        tmp_path / "skip", *skip, "train.steps=8", "summary.every_steps=4", *poison(5)
    )
    assert training.train(lambda: False)
    # Seven updates on the same blocks.
    other = without_blocks(tmp_path / "other", [5], *skip, "train.steps=7")
    assert_same_bits(learned(variables(training)), learned(other))
    assert variables(training)["/guard/windows/model/count"] == 7
    lines = log(tmp_path / "skip")
    assert [line.get("updates_skipped") for line in lines if line["split"] == "train"] == [
        None,
        1.0,
    ]
    assert all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.slow
def test_skipped_step_moves_no_average_and_no_loss_scale(tmp_path):
    skip = [
        "precision=mixed_float16",
        "train.ema_decay=0.5",
        "divergence.action=skip",
        "train.steps=1",
    ]
    training = engine(tmp_path, *QUICK, *MOVING, *skip, *poison(0))
    training.state.loss_scale.value.assign(8.0)
    before = variables(training)
    training.train(lambda: False)
    after = variables(training)
    for name in [*learned(before), *(name for name in before if name.startswith("/averages"))]:
        assert before[name].tobytes() == after[name].tobytes(), name
    assert after["/loss_scale/value"] == 8.0
    assert after["/guard/skipped"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rollback_equals_run_that_never_saw_the_samples(tmp_path, strategy):
    rollback = [
        *QUICK,
        *MOVING,
        *strategy,
        "divergence.action=rollback",
        "checkpoint.every_steps=3",
        "summary.every_steps=2",
    ]
    # When block 1 is left out, block 5 is that of step 4; without block 5, block 6 is.
    training, lines = engine_with_lines(tmp_path / "rollback", *rollback, *poison(1, 5, 6))
    assert training.train(lambda: False)
    assert training.state.divergence_monitor.blocks() == [1, 5, 6]
    assert_same_bits(without_blocks(tmp_path / "other", [1, 5, 6], *rollback), variables(training))
    assert losses(tmp_path / "rollback") == losses(tmp_path / "other")
    assert [line for line in lines if "rolling back" in line or "Continuing" in line] == [
        "The loss became nan after 1 steps; rolling back, and leaving out the samples of step 1 "
        "(1 of at most 16)",
        "Continuing from the checkpoint of step 0.",
        *(
            line
            for number in (2, 3)
            for line in (
                "The loss became nan after 4 steps; rolling back, and leaving out the samples of "
                f"step 4 ({number} of at most 16)",
                "Continuing from the checkpoint of step 3.",
            )
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "read", [pytest.param(False, id="in memory", marks=slow), pytest.param(True, id="read")]
)
def test_kill_after_rollback_changes_no_bit(tmp_path, read):
    rollback = [
        *QUICK,
        *LINEAR,
        "divergence.action=rollback",
        "checkpoint.every_steps=4",
        "train.steps_per_loop=1",
        *poison(5, read=read),
    ]

    def train(run_dir, kill=False):
        training = engine(run_dir, *rollback)

        def stop():
            if kill and training.step == 6:
                assert training.state.divergence_monitor.blocks() == [5]
                raise InterruptedError
            return False

        training.train(stop)
        return training

    with pytest.raises(InterruptedError):
        train(tmp_path / "killed", kill=True)
    again = engine(tmp_path / "killed", *rollback)
    again.checkpointer.restore_latest()
    assert again.state.divergence_monitor.blocks() == []
    straight = train(tmp_path / "straight")
    assert straight.loop.run.experimental_get_tracing_count() == 1
    assert_same_bits(variables(straight), variables(train(tmp_path / "killed")))
    # What comes later finds the list in the checkpoint.
    training = engine(tmp_path / "killed", *rollback)
    training.checkpointer.restore_latest()
    assert training.state.divergence_monitor.blocks() == [5]


@slow
def test_rollback_leaves_out_earlier_steps_too(tmp_path):
    rollback = [
        *QUICK,
        *LINEAR,
        "divergence.action=rollback",
        "divergence.rollback_steps=3",
        "checkpoint.every_steps=1",
        "checkpoint.keep=5",
    ]
    training, lines = engine_with_lines(tmp_path / "rollback", *rollback, *poison(6))
    assert training.train(lambda: False)
    assert "Continuing from the checkpoint of step 4." in lines
    assert_same_bits(without_blocks(tmp_path / "other", [4, 5, 6], *rollback), variables(training))


def test_rollback_without_earlier_checkpoint_ends_run(tmp_path):
    options = [
        "divergence.action=rollback",
        "divergence.rollback_steps=4",
        "checkpoint.every_steps=1",
        "checkpoint.keep=2",
    ]
    training = engine(tmp_path, *QUICK, *LINEAR, *options, *poison(6))
    with pytest.raises(
        NonFiniteError,
        match=r"^the loss became nan after 6 steps, "
        "and there is no checkpoint of step 3 or before; ",
    ):
        training.train(lambda: False)
    assert training.checkpointer.steps() == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_divergence_beyond_max_skips_ends_run(tmp_path, action):
    training = engine(
        tmp_path,
        *QUICK,
        *LINEAR,
        f"divergence.action={action}",
        "divergence.max_skips=2",
        *poison(2, 4, 5),
    )
    after = {"skip": 5, "rollback": 3}[action]
    end = (
        rf"^the loss became nan after {after} steps "
        r"when divergence.max_skips \(2\) leaves no more room; try"
    )
    with pytest.raises(NonFiniteError, match=end):
        training.train(lambda: False)


@pytest.mark.slow
def test_spike_is_rolled_back(tmp_path):
    options = [
        "divergence.spike_sigma=50",
        "divergence.window=4",
        "divergence.action=rollback",
        "checkpoint.every_steps=2",
    ]
    training, lines = engine_with_lines(
        tmp_path / "spike", *QUICK, *LINEAR, *options, *poison(6, factor=1e5)
    )
    assert training.train(lambda: False)
    assert training.state.divergence_monitor.blocks() == [6]
    assert sum(line.startswith("The loss jumped to ") for line in lines) == 1
    assert_same_bits(
        without_blocks(tmp_path / "other", [6], *QUICK, *LINEAR, *options), variables(training)
    )


KILLED = [
    "model.width=4", "model.batch_norm=true", "model.dropout=0.3", "train.steps=24",
    "batch.global_size=16", "evaluate.every_steps=4", "checkpoint.every_steps=3",
    "checkpoint.every_epochs=null", "divergence.action=rollback", "restart.backoff_secs=0",
    "train.ema_decay=0.9",
]  # fmt: skip


@pytest.mark.long
def test_real_processes_killed_after_rollback_agree(tmp_path):
    """Whatever the cause: the samples of step 10 are left out."""
    bad_data = poison(10)
    fault = ["+fault.nan={action:nan,process:chief,phase:step,at:11}"]
    # Step 12 is evaluated after the rollback from step 10 to 9, before the list is in a checkpoint.
    runs = {
        "straight": (TWO, bad_data, False),
        "killed": (["strategy=multi_worker"], bad_data, True),
        "killed after a fault": (["strategy=multi_worker"], fault, True),
    }
    states = {}
    for name, (strategy, cause, is_killed) in runs.items():
        directory = tmp_path / name
        directory.mkdir()
        kill = [signaler(directory, [12], signal.SIGKILL, index=1)] if is_killed else []
        code, out, err = run(directory, *KILLED, *strategy, *cause, *kill)
        assert code == 0, out + err
        assert (
            out.count("rolling back, and leaving out the samples of step 10 (1 of at most 16)") == 1
        ), out
        assert ("in 2 attempts" in out) == is_killed
        states[name] = final_variables(only_run(directory))
    assert_same_bits(states["straight"], states["killed"])
    assert_same_bits(states["straight"], states["killed after a fault"])
