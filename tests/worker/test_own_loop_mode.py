"""User-defined loops: replicas, results, restarts, errors."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.support.loops import count, everything, run_loop
from tests.support.processes import final_variables, log
from tests.support.training import assert_same_bits
from trainer.errors import CheckpointError, ConfigError

MIRRORED = ("strategy=mirrored", "strategy.virtual_devices=2")
CENTRAL = ("strategy=central_storage", "strategy.virtual_devices=2")
SLOW_BUT_MIRRORED = [
    MIRRORED,
    pytest.param((), id="one_device", marks=pytest.mark.slow),
    pytest.param(CENTRAL, id="central_storage", marks=pytest.mark.slow),
]

BATCH = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)


def stream(context):
    """Return the rows of BATCH, again and again, in parts of the replicas."""
    size = context.get_per_replica_batch_size(len(BATCH))
    return tf.data.Dataset.from_tensor_slices(BATCH).batch(size).repeat()


def interrupted(replicator):
    """Be `everything`, with an error in the sixth step."""
    original = replicator.run

    def run(step_fn, input_fn):
        if replicator.step == 5:
            raise KeyError("user error")
        return original(step_fn, input_fn)

    replicator.run = run
    everything(replicator)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SLOW_BUT_MIRRORED)
def test_continued_loop_ends_with_the_bits_of_an_undisturbed_one(tmp_path, strategy):
    often = (*strategy, "checkpoint.every_steps=3")
    assert run_loop(everything, tmp_path / "straight", *often)
    with pytest.raises(KeyError):
        run_loop(interrupted, tmp_path / "killed", *often)
    lines = []
    assert run_loop(everything, tmp_path / "killed", *often, lines=lines)
    assert "Continuing from the checkpoint of step 3." in lines
    assert "Skipping the elements of 3 steps of the stream input_fn." in lines
    assert_same_bits(final_variables(tmp_path / "straight"), final_variables(tmp_path / "killed"))
    assert log(tmp_path / "straight") == log(tmp_path / "killed")
    assert [line["step"] for line in log(tmp_path / "killed")] == [2, 4, 6, 8]


def test_stop_saves_and_leaves_the_loop(tmp_path):
    counts = []

    def main(replicator):
        try:
            count(replicator)
        finally:
            counts.append(replicator.step)

    assert not run_loop(main, tmp_path / "run", stop=lambda: True)
    assert counts == [0]
    assert not (tmp_path / "run" / "result.json").exists()
    assert run_loop(main, tmp_path / "run")
    run_loop(main, tmp_path / "straight")
    assert_same_bits(final_variables(tmp_path / "straight"), final_variables(tmp_path / "run"))


def test_finished_loop_leaves_a_result_and_repeats_no_line(tmp_path):
    def main(replicator):
        count(replicator)
        replicator.log(end=1)

    assert run_loop(main, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["step"] == 8
    assert result["metrics"] == {"end": 1.0}
    lines = log(tmp_path / "run")
    assert run_loop(main, tmp_path / "run")  # as after a kill before the result was written
    assert log(tmp_path / "run") == lines
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"] == {"end": 1.0}


@pytest.mark.parametrize("strategy", SLOW_BUT_MIRRORED)
def test_run_returns_one_result_for_each_replica(tmp_path, strategy):
    results = []

    def main(replicator):
        with replicator.context():
            weights = tf.Variable(tf.ones([3]))

        def step_fn(batch):
            return {
                "loss": tf.reduce_mean(tf.linalg.matvec(batch, weights)),
                "replica": replicator.replica(),
                "first": batch[0],
            }

        replicator.checkpoint(weights=weights)
        results.extend(replicator.run(step_fn, stream))
        assert len(results) == replicator.num_replicas
        assert (replicator.worker, replicator.num_workers) == (0, 1)

    run_loop(main, tmp_path / "run", *strategy)
    losses = [result["loss"] for result in results]
    np.testing.assert_allclose(np.mean(losses), BATCH.sum(1).mean(), rtol=1e-5)
    assert [int(result["replica"]) for result in results] == list(range(len(results)))
    first = BATCH[:: len(BATCH) // len(results)]
    np.testing.assert_array_equal([result["first"] for result in results], first)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "reduce"), [(MIRRORED, "mean"), (CENTRAL, "sum")])
def test_gradients_are_reduced_and_then_clipped(tmp_path, strategy, reduce):
    weights = {}

    def main(replicator):
        with replicator.context():
            variable = tf.Variable(tf.ones([3]))
            sgd = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)
            optimizer = replicator.wrap_optimizer(sgd, [variable], reduce=reduce, clip_norm=0.3)

        def step_fn(batch):
            with tf.GradientTape() as tape:
                losses = tf.linalg.matvec(batch, variable) ** 2
                size = len(BATCH) if reduce == "sum" else len(BATCH) // replicator.num_replicas
                loss = tf.reduce_sum(losses) / size
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
            return loss

        replicator.checkpoint(variable=variable, optimizer=optimizer)
        for _ in range(4):
            replicator.run(step_fn, stream)
        weights[replicator.num_replicas] = variable.numpy()

    run_loop(main, tmp_path / "one")
    run_loop(main, tmp_path / "two", *strategy)
    np.testing.assert_allclose(weights[1], weights[2], rtol=1e-6)
    assert 0.05 < np.linalg.norm(weights[1] - 1) < 0.4  # 4 clipped steps with momentum


def test_collectives_exchange_values_of_replicas(tmp_path):
    results = []

    def main(replicator):
        def step_fn():
            own = tf.constant([1.0, 2.0]) * (replicator.replica() + 1)
            return {
                "sum": replicator.all_reduce(own),
                "max": replicator.all_reduce(own, "max"),
                "squares": replicator.map_reduce(tf.square, own),
                "rows": replicator.all_gather(own),
                "square rows": replicator.map_gather(tf.square, own),
                "columns": replicator.map_gather(tf.square, own, axis=1),
                "second": replicator.broadcast(own, source=1),
            }

        replicator.checkpoint()
        results.extend(replicator.run(step_fn))

    run_loop(main, tmp_path / "run", *MIRRORED)
    expected = {
        "sum": [3, 6],
        "max": [2, 4],
        "squares": [5, 20],
        "rows": [[1, 2], [2, 4]],
        "square rows": [[1, 4], [4, 16]],
        "columns": [[1, 4], [4, 16]],
        "second": [2, 4],
    }
    for result in results:
        for name, value in expected.items():
            np.testing.assert_array_equal(result[name], value, err_msg=name)
    assert len(results) == 2


def test_random_seeds_differ_between_replicas_calls_and_steps(tmp_path):
    seeds = []

    def main(replicator):
        def step_fn():
            return [replicator.random_seed(), replicator.random_seed()]

        replicator.checkpoint()
        for _ in range(2):
            seeds.extend(tuple(seed) for pair in replicator.run(step_fn) for seed in np.array(pair))

    run_loop(main, tmp_path / "run", *MIRRORED)
    assert len(set(seeds)) == 8


def test_what_was_logged_and_saved_is_complete_after_an_error(tmp_path):
    def main(replicator):
        with replicator.context():
            variable = tf.Variable(0.0)
        replicator.checkpoint(variable=variable)
        while True:
            replicator.run(step_fn)
            variable.assign_add(1.0)
            replicator.log(value=variable)
            if replicator.step == 4:
                raise ZeroDivisionError

    def step_fn():
        return tf.constant(1.0)

    options = ("checkpoint.every_steps=3", "checkpoint.async_write=true")
    with pytest.raises(ZeroDivisionError):
        run_loop(main, tmp_path / "run", *options)
    assert [line["value"] for line in log(tmp_path / "run")] == [1, 2, 3, 4]
    assert final_variables(tmp_path / "run")["variable/.ATTRIBUTES/VARIABLE_VALUE"] == 3.0


def total(batch):
    return tf.reduce_sum(batch)


def once(context):
    return tf.data.Dataset.from_tensors(BATCH)


def running(make):
    """Return a loop that runs what `make` returns, made anew for each of two steps."""

    def main(replicator):
        replicator.checkpoint()
        for _ in range(2):
            replicator.run(*make())

    return main


def unwrapped(replicator):
    with replicator.context():
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)
    replicator.checkpoint(optimizer=optimizer)


def probabilities():
    shares = tf.nn.softmax(tf.ones([1, 2]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits([0], shares)


MISTAKES = {
    "call replicator.checkpoint": lambda loop: loop.run(lambda: tf.constant(1.0)),
    "two input functions are called <lambda>": running(lambda: (total, lambda x: stream(x))),
    "the dataset of once has ended at step 0; add .repeat": running(lambda: (total, once)),
    "variable variable was made outside of replicator.context": lambda loop: loop.checkpoint(
        variable=tf.Variable(1.0)
    ),
    "optimizer is not wrapped": unwrapped,
    "given the probabilities of a softmax": running(lambda: (probabilities,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("message", MISTAKES)
def test_mistake_is_one_line(tmp_path, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run_loop(MISTAKES[message], tmp_path / "run", *MIRRORED)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_collective_outside_of_a_step_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="all_reduce belongs into the function"):
        run_loop(lambda replicator: replicator.all_reduce(1), tmp_path / "run")


def test_checkpoint_that_lacks_a_variable_is_refused(tmp_path):
    def main(names):
        def loop(replicator):
            with replicator.context():
                variables = {name: tf.Variable(1.0) for name in names}
            replicator.checkpoint(**variables)
            replicator.run(lambda: tf.constant(1.0))

        return loop

    assert run_loop(main(["a"]), tmp_path / "run")
    with pytest.raises(CheckpointError, match="lacks"):
        run_loop(main(["a", "b"]), tmp_path / "run")


def test_other_number_of_replicas_is_refused(tmp_path):
    assert run_loop(count, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"num_replicas": 1, "devices": []}')
    with pytest.raises(ConfigError, match="trained with 1 replicas, and here are 2"):
        run_loop(count, tmp_path / "run", *MIRRORED)


def test_value_error_of_a_step_is_no_mistake_in_the_configuration(tmp_path):
    def main(replicator):
        replicator.checkpoint()
        raise ValueError("user error")

    with pytest.raises(ValueError, match="user error"):
        run_loop(main, tmp_path / "run")


@pytest.mark.parametrize("strategy", SLOW_BUT_MIRRORED)
def test_what_is_assigned_before_the_step_is_assigned_once(tmp_path, strategy):
    def main(replicator, *, ends_at=None):
        with replicator.context():
            rate = tf.Variable(1.0)
            seen = tf.Variable(0.0)
        replicator.checkpoint(rate=rate, seen=seen)
        while replicator.step < replicator.total_steps:
            rate.assign(rate * 0.5)
            if replicator.step == ends_at:
                raise KeyError("user error")
            replicator.run(step_fn)
            seen.assign_add(rate)

    def step_fn():
        return tf.constant(0.0)

    often = (*strategy, "checkpoint.every_steps=3")
    assert run_loop(main, tmp_path / "straight", *often)
    with pytest.raises(KeyError):
        run_loop(functools.partial(main, ends_at=5), tmp_path / "killed", *often)
    assert run_loop(main, tmp_path / "killed", *often)
    assert_same_bits(final_variables(tmp_path / "straight"), final_variables(tmp_path / "killed"))
