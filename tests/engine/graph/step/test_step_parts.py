"""Updates with parts of a batch, and a task's own draws: the same on every layout."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import Layout
from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, fold_seed
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.errors import ConfigError

SIZE = 32
NUM_PARTS = 2
RATE = 0.25
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(SIZE, 3)).astype(np.float32)
Y = RANDOM.normal(size=SIZE).astype(np.float32)
WEIGHT = np.where(np.arange(SIZE) % 7 == 3, 0.0, 1.0).astype(np.float32)


LAYOUTS = [Layout(), Layout(2, accumulate=2), Layout(2, accumulate=2, shards=4)]


def run(layout: Layout, model: Callable[[], tf.keras.Model], train: Callable) -> np.ndarray:
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


def dense(inputs: int, units: int) -> Callable[[], tf.keras.Model]:
    layers = [tf.keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros")]
    return lambda: tf.keras.Sequential([tf.keras.Input((inputs,)), *layers])


def squared_error(model: tf.keras.Model) -> Callable:
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


def draws(layout: Layout, *, inside: bool) -> np.ndarray:
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


def test_draw_of_unknown_shape_is_refused():
    with batch_part(BatchPart(lambda: fold_seed(0, 1), SIZE, 0)):
        step = Step(tf.constant(0, tf.int64), StepOptions(), CollectiveLog())

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None])])
        def draw(x):
            return step.random_normal([tf.shape(x)[0], 2])

        with pytest.raises(ConfigError, match="must have a static shape"):
            draw(tf.zeros([3]))


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


@pytest.mark.parametrize(
    ("number", "local_devices", "expected"),
    [(0, 1, (0, 0)), (3, 1, (3, 3)), (3, 2, (3, 1)), (5, 4, (5, 1))],
)
def test_step_tells_its_replica_and_its_process(monkeypatch, number, local_devices, expected):
    devices = [f"/device:CPU:{index}" for index in range(local_devices)]
    context = SimpleNamespace(
        replica_id_in_sync_group=tf.constant(number),
        num_replicas_in_sync=8,
        strategy=SimpleNamespace(extended=SimpleNamespace(worker_devices=devices)),
    )
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: context)
    step = Step(tf.constant(0, tf.int64), StepOptions(), CollectiveLog())
    assert (step.replica, step.worker, step.num_replicas) == (*expected, 8)
