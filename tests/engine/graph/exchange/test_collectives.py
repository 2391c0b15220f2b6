"""Collectives: values, gradients, global batch normalization, and replicas that differ.

Gradients in 16 bits: rounded once, of any size, without overflow; nothing else is rounded.
"""

import functools
import json
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support import replicas
from tests.support.layouts import mirrored
from trainer.engine.graph.exchange.collectives import (
    CompressedExchange,
)

ROOT = Path(__file__).resolve().parents[4]


STRATEGIES = {
    "one device": (1, lambda: tf.distribute.OneDeviceStrategy("CPU:0")),
    "mirrored 2": (2, lambda: mirrored(2)),
    "mirrored 3": (3, lambda: mirrored(3)),
    "central storage 2": (
        2,
        lambda: tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=["CPU:0", "CPU:1"], parameter_device="CPU:0"
        ),
    ),
}


@functools.cache
def strategy_and_layers(name):
    strategy = STRATEGIES[name][1]()
    with strategy.scope():
        return strategy, replicas.make_layers()


def run(case, name="mirrored 2"):
    """Run a case, of a step, the number of a replica and layers; return what each replica has."""
    return replicas.run(strategy_and_layers(name)[0], case, strategy_and_layers(name)[1])


TOLERANCE = 1e-5
"""Relative and absolute: some ten sums of up to 12 float32 numbers, each off by 12 * 2**-24.

That is 7e-6; a wrong formula is off by 0.1 at least.
"""


def assert_close(got, wanted):
    tf.nest.assert_same_structure(got, wanted)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=[pytest.mark.slow] * name.endswith("2")) for name in STRATEGIES],
)
def test_values_and_gradients_follow_the_formulas(strategy):
    count = STRATEGIES[strategy][0]
    cases = [name for name in replicas.CASES if count > 1 or "broadcast" not in name]

    def case(step, replica, layers):
        return {name: replicas.CASES[name](step, replica, layers) for name in cases}

    results = run(case, strategy)
    assert len(results) == count
    for name in cases:
        for mine, wanted in zip(results, replicas.expected(name, count), strict=True):
            assert_close(mine[name], wanted)


def test_moving_statistics_are_those_of_global_batch():
    strategy = mirrored(2)
    with strategy.scope():
        layers = replicas.make_layers()
    replicas.run(strategy, replicas.CASES["synchronized"], layers)
    assert_close(replicas.statistics(layers["synchronized"]), moving_statistics(2))


def moving_statistics(count):
    # tf_keras: the synchronized layer moves toward the variance of the batch, the fused one
    # toward the unbiased estimate.
    batch, rest = replicas.BATCH[:count].reshape(-1, 5).astype(np.float64), 1 - replicas.MOMENTUM
    return [rest * batch.mean(0), replicas.MOMENTUM + rest * batch.var(0)]


DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint16", "int32", "uint64"]


def test_every_number_type_is_kept():
    values = [[3, 100], [7, 5], [1, 20]]

    def case(step, replica, layers):
        nest = {name: tf.constant(values[replica], name) for name in DTYPES}
        last = step.num_replicas - 1
        return [
            step.all_reduce(nest),
            step.all_reduce(nest, "min"),
            step.all_reduce(nest, "max"),
            step.broadcast(nest, last),
        ]

    own = np.array(values)
    for got in run(case, "mirrored 3"):
        for nest, wanted in zip(got, [own.sum(0), own.min(0), own.max(0), own[-1]], strict=True):
            for name, value in nest.items():
                assert value.dtype.name == name
                np.testing.assert_array_equal(value.numpy().astype(np.int64), wanted)


def test_mean_in_half_precision_does_not_overflow():
    def mean(step, *_):
        return step.all_reduce(tf.constant([60000.0, 1.0], tf.float16), "mean")

    got = run(mean)
    np.testing.assert_array_equal(got, [[60000, 1]] * 2)


REFUSED = {
    "op .maen. must be one of sum, mean, .*; did you mean 'mean'": (
        lambda step: step.all_reduce(1.0, "maen")
    ),
    r"mean of int32\[\]": lambda step: step.all_reduce([2], "mean"),
    r"string\[\] is not of a number type": lambda step: step.broadcast("a"),
    "IndexedSlices is no dense": lambda step: step.all_reduce(tf.IndexedSlices([[1.0]], [0])),
    r"the shape of float32\[None\]": (lambda step: step.all_reduce(tf.boolean_mask([1.0], [True]))),
    "axis must be >= -1": lambda step: step.all_gather([1.0], axis=3),
    r"axis 0 of float32\[\]": lambda step: step.reduce_scatter(1.0),
    r"axis 0 of float32\[5, 2\]": lambda step: step.reduce_scatter(tf.zeros([5, 2])),
    "source must be >= 0": lambda step: step.broadcast(1.0, -1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_values_that_cannot_be_exchanged_are_refused(message):
    with pytest.raises(ValueError, match=message):
        run(lambda step, *_: REFUSED[message](step))


HERE = rf" at {re.escape(__file__)}:\d+"
X = [1.0, 2.0]


def swapped(step, replica):
    if replica == 0:
        return step.all_reduce(X), step.all_gather(X)
    return step.all_gather(X), step.all_reduce(X)


def repeated(step, times):
    return [step.all_reduce(1) for _ in range(times)][-1]


def one_gradient(step, replica):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(step.all_reduce(x if replica == 0 else tf.constant(X)))
    tape.gradient(loss, x)
    return step.all_reduce(1)


END, COUNT = "the end of the step", "all_reduce(sum) of int32[]"
DIFFERENT = {
    "order": (swapped, 1, "all_reduce(sum) of [float32[], float32[]]",
              "all_gather(axis=0) of [float32[], float32[]]"),
    "shape": (lambda step, r: step.all_reduce(tf.zeros([2 + r])), 1,
              "all_reduce(sum) of float32[2]", "all_reduce(sum) of float32[3]"),
    "first makes more": (lambda step, r: repeated(step, 2 - r), 2, COUNT, END),
    "second makes more": (lambda step, r: repeated(step, 1 + r), 2, END, COUNT),
    "gradient": (one_gradient, 2, "gradient of all_reduce(sum) of float32[2]", COUNT),
}  # fmt: skip


@pytest.mark.parametrize(("case", "number", "first", "second"), DIFFERENT.values(), ids=DIFFERENT)
def test_error_names_the_collective_in_which_replicas_differ(case, number, first, second):
    first, second = (re.escape(what) + (HERE if what != END else "") for what in (first, second))
    message = f"^collective {number} of the step differs: replica 1 has {second}, another {first}; "
    with pytest.raises(ValueError, match=message):
        run(lambda step, replica, _: case(step, replica))


COMPILED = {
    "tf.function": lambda step: tf.function(lambda: step.all_reduce(1.0), autograph=False)(),
    "tf.cond": lambda step: tf.cond(
        tf.random.uniform([]) < 2, lambda: step.all_reduce(1.0), lambda: 1.0
    ),
}


@pytest.mark.parametrize("call", COMPILED.values(), ids=COMPILED)
def test_collective_within_inner_graph_is_refused_for_several_replicas(call):
    assert run(lambda step, *_: call(step), "one device") == [1.0]
    with pytest.raises(ValueError, match=rf"{HERE} is inside a tf.function, "):
        run(lambda step, *_: call(step))


@pytest.mark.slow
def test_two_real_processes_follow_the_formulas_and_agree_on_statistics_and_logs():
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in sockets]
    with ExitStack() as stack:
        processes = []
        for index in range(2):
            command = [sys.executable, "-m", "tests.support.replicas", str(index), *addresses]
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)  # no effect on one that has ended
            processes.append(process)
        outputs = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    two_processes = [json.loads(out) for out, _ in outputs]
    for case in replicas.CASES:
        for results, wanted in zip(two_processes, replicas.expected(case, 2), strict=True):
            for mine, leaf in zip(results["results"][case], tf.nest.flatten(wanted), strict=True):
                assert_close(np.ravel(mine), np.ravel(leaf))
    first, second = two_processes
    assert_close(first["moving"], [value.tolist() for value in moving_statistics(2)])
    assert first["moving"] == second["moving"]
    assert first["logs"] == second["logs"]
    assert len(first["logs"]["gradient of sum"]) == 3  # the reduction, its gradient, the end


RELATIVE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""One rounding: bfloat16 has 8 bits, float16 has 11."""


@pytest.fixture(scope="module")
def two():
    return mirrored(2)


def summed(two, dtype, steps, others=(1.0,)):
    """Sum each of `steps`, pairs of arrays for two replicas; return the sums."""
    compressed = CompressedExchange(tf.as_dtype(dtype))

    @tf.function
    def step(first, second):
        def of_replica():
            context = tf.distribute.get_replica_context()
            mine = tf.where(context.replica_id_in_sync_group == 0, first, second)
            return compressed(context, [mine], [tf.constant(x) for x in others])

        return tf.nest.map_structure(two.experimental_local_results, two.run(of_replica))

    results = []
    for pair in steps:
        ([(one, two)], exact) = step(*(tf.constant(x, tf.float32) for x in pair))
        assert np.array_equal(one.numpy(), two.numpy(), equal_nan=True)
        results.append((one.numpy(), [float(x) for x, _ in exact]))
    return results


@pytest.mark.parametrize("dtype", RELATIVE)
def test_sum_is_right_to_the_bits_of_the_type(two, dtype):
    random = np.random.default_rng(0)
    steps = [(random.normal(size=(40, 3)), random.normal(size=(40, 3))) for _ in range(3)]
    for (total, _), (first, second) in zip(summed(two, dtype, steps), steps, strict=True):
        error = np.abs(total - (first + second)).max()
        # Each of the two is rounded, and so is their sum, which is up to twice as large.
        assert 0 < error <= 4 * RELATIVE[dtype] * np.abs([first, second]).max()


@pytest.mark.parametrize("size", [0.0, 1e-25, 1e-6, 1e37])
def test_float16_scale_follows_size_of_gradient_within_the_step(two, size):
    first, large = np.array([1e-3, -1e-3]), np.array([1.0, -0.5, 1e-3, 0.25][:2]) * size
    # Two models of a task take turns.
    for total, _ in summed(two, "float16", [(first, first), (large, large)] * 2)[1::2]:
        assert total == pytest.approx(2 * large, rel=2.0**-9)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_gradient_that_is_not_finite_stays_so_on_all_replicas(two, dtype, bad):
    values = [(np.array([bad, 1.0]), np.array([1.0, 1.0])), (np.ones(2), np.ones(2))]
    (total, exact), (after, _) = summed(two, dtype, values)
    assert not np.isfinite(total[0])
    assert exact == [2.0]
    assert (after == 2).all()
