"""One step: precision, XLA, averages, soft updates, and what a task does with parts of a batch."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import Layout
from tests.support.training import (
    LOW_PRECISION_ROUNDING,
    ROUNDING,
    TWO,
    distance,
    engine,
    recipe,
    train,
    variables,
    weights,
)
from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, fold_seed
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.errors import ConfigError

PLAIN = ("optimizer=sgd", "optimizer.learning_rate=0.05")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (["jit=true"], ROUNDING),
        (["jit=true", *TWO], ROUNDING),
        (["precision=mixed_bfloat16"], LOW_PRECISION_ROUNDING),
    ],
    ids=["jit", "jit on two replicas", "bfloat16"],
)
def test_other_kernels_and_types_make_the_same_update(tmp_path, options, tolerance):
    initial = variables(engine(tmp_path / "initial", *PLAIN))
    plain = train(tmp_path / "plain", *PLAIN)
    other = train(tmp_path / "other", *PLAIN, *options)
    assert distance(plain, other, initial) <= tolerance


@pytest.mark.slow
def test_overflow_drops_update_and_halves_loss_scale(tmp_path):
    training = engine(tmp_path, *PLAIN, *TWO, "precision=mixed_float16", "train.steps=1")
    training.state.loss_scale.value.assign(3e38)
    training.state.gradient_norm.assign(7.0)
    before = variables(training)
    training.train(lambda: False)
    after = variables(training)
    np.testing.assert_array_equal(weights(before), weights(after))
    assert int(training.state.task.optimizers["model"].iterations.numpy()) == 0
    assert after["/loss_scale/value"] == pytest.approx(1.5e38)
    assert training.loop.report() == {"gradient_norm": 7.0}  # of the last update
    assert training.step == 1


def test_averages_follow_their_recurrence_and_are_evaluated(tmp_path):
    options = ("train.ema_decay=0.5", "train.steps=3", "train.steps_per_loop=1")
    training = engine(tmp_path, *PLAIN, *TWO, *options)
    kernel = training.state.task.models["model"].trainable_variables[0]
    history = [kernel.numpy()]

    def stop():
        # Not within the evaluation at the end, when weights and averages are exchanged.
        if len(history) <= training.step < 3:
            history.append(kernel.numpy())
        return False

    training.train(stop)
    history.append(kernel.numpy())
    average = history[0]
    for step, weight in enumerate(history[1:4]):
        decay = min(0.5, (1 + step) / (10 + step))
        average = average + (1 - decay) * (weight - average)
    averaged = training.state.averages["model"][0].numpy()
    # Weights below 1, and three updates of three roundings, each to 2**-25 at most.
    np.testing.assert_allclose(averaged, average, atol=9 * 2.0**-25)
    evaluated = training.evaluator.evaluate(lambda: False).metrics
    np.testing.assert_array_equal(kernel.numpy(), history[3])
    training.state.swap_averages()
    np.testing.assert_array_equal(kernel.numpy(), averaged)
    training.state.averages.clear()
    assert training.evaluator.evaluate(lambda: False).metrics == evaluated


TARGET = (
    "task._target_=tests.support.toy_targets.WithTarget", "~task.label_smoothing",
    "~task.class_weights", "~task.focal_gamma", "model=softmax", "optimizer=sgd",
    "optimizer.learning_rate=0.05", "train.steps=3", "train.steps_per_loop=1",
    "batch.global_size=16", "writers=[jsonl]",
)  # fmt: skip
MODELS = {
    "tf_keras": ("model=cnn", "model.width=2", "model.batch_norm=true"),
    "Keras 3": ("~model.l2", "model._target_=tests.support.keras3_models.conv_net"),
}


def with_target(run_dir, *overrides):
    return recipe(run_dir, *TARGET, *overrides)


def history(run_dir, *overrides):
    """Train; return the variables of the model and of the target before each step and after all."""
    run = with_target(run_dir, *overrides)
    models = run.state.task.models
    seen = []

    def look():
        if len(seen) == run.step:
            seen.append(
                {name: [np.array(value) for value in models[name].get_weights()] for name in models}
            )
        return False

    run.train(look)
    look()
    return seen, run


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_target_follows_its_recurrence_statistics_included(tmp_path, model):
    seen, run = history(tmp_path, *MODELS[model], *TWO)
    assert len(seen) == 4
    for before, after in pairwise(seen):
        for own, source, moved in zip(
            before["target"], after["model"], after["target"], strict=True
        ):
            # Three roundings of numbers near 1.
            np.testing.assert_allclose(moved, own + 0.25 * (source - own), rtol=0, atol=4 * 2**-24)
    assert any(
        np.any(own != source)
        for own, source in zip(seen[-1]["target"], seen[-1]["model"], strict=True)
    )
    assert not run.state.task.models["target"].trainable_variables
    assert list(run.state.task.optimizers) == ["model"]


@pytest.mark.slow
def test_dropped_update_moves_no_target(tmp_path):
    run = with_target(tmp_path, "divergence.action=skip", "train.steps=1")
    models = run.state.task.models
    (kernel, _) = models["model"].trainable_variables
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    before = models["target"].get_weights()
    run.train(lambda: False)
    assert int(run.state.divergence_monitor.skipped) == 1
    for old, new in zip(before, models["target"].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


SIZE = 32
NUM_PARTS = 2
RATE = 0.25
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(SIZE, 3)).astype(np.float32)
Y = RANDOM.normal(size=SIZE).astype(np.float32)
WEIGHT = np.where(np.arange(SIZE) % 7 == 3, 0.0, 1.0).astype(np.float32)


LAYOUTS = [Layout(), Layout(2, accumulate=2), Layout(2, accumulate=2, shards=4)]


def run(layout, model, train):
    """Run one step, `train(step, batch, model, optimizer)`; return the model's kernel."""
    with layout.strategy().scope():
        model = model()
        optimizer = tf.keras.optimizers.legacy.SGD(RATE)
        optimizer.updates_per_step = NUM_PARTS
        optimizer._create_all_weights(model.trainable_variables)
        batch = {"x": X, "y": Y, "weight": WEIGHT, "id": np.arange(SIZE)}
        step = layout.step(lambda step, own: train(step, own, model, optimizer))
        step({name: tf.constant(value) for name, value in batch.items()})
    return model.trainable_variables[0].numpy()


def dense(inputs, units):
    layers = [tf.keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros")]
    return lambda: tf.keras.Sequential([tf.keras.Input((inputs,)), *layers])


def squared_error(model):
    return lambda part: (tf.square(model(part["x"])[:, 0] - part["y"]), {})


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_updates_with_parts_equal_numpy(layout):
    def train(step, batch, model, optimizer):
        for part in step.split(batch, NUM_PARTS):
            step.minimize(squared_error(model), part, model, optimizer)

    kernel = np.zeros(3)
    for number in range(NUM_PARTS):
        x, y, weight = (value[number::NUM_PARTS].astype(float) for value in (X, Y, WEIGHT))
        # The mean is over all examples of the part, those of weight 0 included.
        gradient = (2 * weight * (x @ kernel - y)) @ x / len(x)
        kernel -= RATE * gradient
    # Sums of 16 float32 numbers of size 1, rounded to 6e-8.
    np.testing.assert_allclose(run(layout, dense(3, 1), train)[:, 0], kernel, atol=1e-6)


def draws(layout, *, inside):
    """Return what each example was given by two updates, [SIZE, 3], from the model's kernel."""

    def train(step, batch, model, optimizer):
        def loss(part):
            size = part["id"].shape[0]
            noise = step.random_normal([size, 3]) if inside else part["noise"]
            noise = tf.reshape(noise, [size, 3]) * step.random_uniform([], 1, 2)
            return tf.reduce_sum(model(tf.one_hot(part["id"], SIZE)) * noise, axis=-1), {}

        batch = {**batch, "weight": tf.ones_like(batch["weight"])}
        for part in step.split(batch, NUM_PARTS):
            if not inside:
                part["noise"] = step.random_normal([part["id"].shape[0], 3])
            step.minimize(loss, part, model, optimizer)

    # A kernel's row is that example's draw, times a power of two: exact.
    return run(layout, dense(SIZE, 3), train)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False], ids=["in the loss", "in the step"])
def test_draws_of_a_task_are_the_same_on_every_layout(inside):
    whole = draws(Layout(), inside=inside)
    assert len(np.unique(whole)) == whole.size  # of each example and each update other ones
    for layout in LAYOUTS[1:]:
        np.testing.assert_array_equal(draws(layout, inside=inside), whole, str(layout))


def test_each_draw_of_a_step_differs_and_the_next_step_draws_anew():
    def drawn(index):
        with batch_part(BatchPart(lambda: fold_seed(0, index), SIZE, 0)):
            step = Step(tf.constant(index, tf.int64), StepOptions(), CollectiveLog())
            integers = step.random_uniform([SIZE], 0, 2**30, tf.int32)
            return [step.random_normal([SIZE]), step.random_normal([SIZE]), integers]

    first, second, integers = drawn(1)
    assert not np.intersect1d(first, second).size
    assert integers.dtype == tf.int32
    assert len(np.unique(integers)) == SIZE
    np.testing.assert_array_equal(first, drawn(1)[0])
    assert not np.intersect1d(first, drawn(2)[0]).size


def centered(step, batch, model, optimizer):
    """Make an update whose loss has a collective: features centered over the global batch."""

    def loss(part):
        mean = step.map_reduce(lambda x: tf.reduce_mean(x, axis=0), part["x"], "mean")
        return tf.square(model(part["x"] - mean)[:, 0] - part["y"]), {}

    for part in step.split(batch, NUM_PARTS):
        step.minimize(loss, part, model, optimizer)


def test_loss_may_communicate_unless_it_is_of_parts_of_the_batch():
    one, two = (run(Layout(replicas), dense(3, 1), centered) for replicas in (1, 2))
    np.testing.assert_allclose(one, two, atol=1e-6)
    for layout in (Layout(2, accumulate=2), Layout(2, shards=4)):
        with pytest.raises(ConfigError, match=r"map_reduce\(mean\) at .* would join parts of the"):
            run(layout, dense(3, 1), centered)


def test_batch_that_cannot_be_cut_is_refused():
    def split(step, batch, model, optimizer):
        step.split(batch, 3)

    with pytest.raises(ConfigError, match=r"^task: 16 examples on each of 2 .* 3 equal parts;"):
        run(Layout(2), dense(3, 1), split)

    def minimize(step, batch, model, optimizer):
        for part in step.split(batch, 16):
            step.minimize(squared_error(model), part, model, optimizer)

    with pytest.raises(ConfigError, match=r"given 1 of the examples of a replica, .* into 4 parts"):
        run(Layout(2, 2, shards=4), dense(3, 1), minimize)


def test_number_of_updates_must_be_that_of_the_optimizer():
    def train(step, batch, model, optimizer):
        step.minimize(squared_error(model), batch, model, optimizer)

    with pytest.raises(ConfigError, match=r"made 1 update .* for 2, .*updates_per_step=1\)$"):
        run(Layout(), dense(3, 1), train)
