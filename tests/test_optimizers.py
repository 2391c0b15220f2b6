"""Updates against a reference in NumPy float64, and the kernels that make them."""

import numpy as np
import pytest
import tensorflow as tf

from trainer import optimizers, schedules

RATE, STEPS = 0.05, 6


def start():
    random = np.random.RandomState(0)
    return random.standard_normal((4, 3)), random.standard_normal(3)


def gradients():
    random = np.random.RandomState(1)
    return [(random.standard_normal((4, 3)), random.standard_normal(3)) for _ in range(STEPS)]


def apply(optimizer):
    """Gives a matrix and a vector after six updates."""
    variables = [tf.Variable(value, dtype=tf.float32) for value in start()]
    for step in gradients():
        pairs = [(tf.constant(gradient, tf.float32), variable) for gradient, variable in zip(step, variables, strict=True)]
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
    return [variable.numpy() for variable in variables]


def sgd(momentum, nesterov, rate=lambda t: RATE):
    def update(x, g, state, t):
        state["v"] = momentum * state.get("v", 0.0) - rate(t - 1) * g
        return x + (momentum * state["v"] - rate(t - 1) * g if nesterov else state["v"])

    return update


def rmsprop(rho, momentum, epsilon):
    def update(x, g, state, t):
        state["ms"] = rho * state.get("ms", 0.0) + (1 - rho) * g * g
        state["mom"] = momentum * state.get("mom", 0.0) + RATE * g / np.sqrt(state["ms"] + epsilon**2)
        return x - state["mom"]

    return update


def adam(beta_1, beta_2, epsilon, weight_decay=0.0):
    def update(x, g, state, t):
        state["m"] = beta_1 * state.get("m", 0.0) + (1 - beta_1) * g
        state["v"] = beta_2 * state.get("v", 0.0) + (1 - beta_2) * g * g
        rate = RATE * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        decayed = x - RATE * weight_decay * x if x.ndim > 1 else x
        return decayed - rate * state["m"] / (np.sqrt(state["v"]) + epsilon)

    return update


def reference(update):
    values, states = list(start()), [{}, {}]
    for t, step in enumerate(gradients(), start=1):
        values = [update(x, g, state, t) for x, g, state in zip(values, step, states, strict=True)]
    return values


SCHEDULE = schedules.step(RATE, STEPS, boundaries=[2, 4], factor=0.5)

CASES = {
    "sgd": (optimizers.sgd(RATE, momentum=0.0), sgd(0.0, False)),
    "momentum": (optimizers.sgd(RATE), sgd(0.9, False)),
    "nesterov": (optimizers.sgd(RATE, momentum=0.8, nesterov=True), sgd(0.8, True)),
    "schedule": (optimizers.sgd(SCHEDULE), sgd(0.9, False, lambda t: RATE * 0.5 ** (t // 2))),
    "rmsprop": (optimizers.rmsprop(RATE), rmsprop(0.9, 0.0, 1e-7)),
    "rmsprop with momentum": (optimizers.rmsprop(RATE, rho=0.8, momentum=0.7, epsilon=1e-3), rmsprop(0.8, 0.7, 1e-3)),
    "adam": (optimizers.adam(RATE), adam(0.9, 0.999, 1e-7)),
    "adam with options": (optimizers.adam(RATE, beta_1=0.5, beta_2=0.9, epsilon=1e-3), adam(0.5, 0.9, 1e-3)),
    "adamw": (optimizers.adamw(RATE), adam(0.9, 0.999, 1e-7, 0.01)),
    "adamw with options": (
        optimizers.adamw(RATE, beta_1=0.5, beta_2=0.9, epsilon=1e-3, weight_decay=0.5),
        adam(0.5, 0.9, 1e-3, 0.5),
    ),
    "adamw without decay": (optimizers.adamw(RATE, weight_decay=0.0), adam(0.9, 0.999, 1e-7)),
}


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_the_reference(case):
    optimizer, update = CASES[case]
    for got, expected in zip(apply(optimizer), reference(update), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 2, 2), (3,), ()])
def test_adamw_decays_matrices_and_kernels_but_no_vectors_and_scalars(shape):
    variable = tf.Variable(tf.fill(shape, 2.0))
    optimizer = optimizers.adamw(0.1, weight_decay=0.5)
    optimizer.apply_gradients([(tf.zeros(shape), variable)])
    expected = 2.0 * (1 - 0.1 * 0.5) if len(shape) > 1 else 2.0
    np.testing.assert_allclose(variable.numpy(), np.full(shape, expected, np.float32), rtol=1e-7)


def test_adamw_decays_with_the_scheduled_rate():
    variable = tf.Variable([[1.0]])
    optimizer = optimizers.adamw(schedules.step(0.5, 9, boundaries=[1], factor=0.5), weight_decay=0.5)
    for expected in (0.75, 0.75 * 0.875):
        optimizer.apply_gradients([(tf.zeros([1, 1]), variable)])
        np.testing.assert_allclose(variable.numpy(), [[expected]], rtol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "kernel"),
    [
        (optimizers.sgd(RATE, momentum=0.0), "ResourceApplyGradientDescent"),
        (optimizers.sgd(RATE), "ResourceApplyKerasMomentum"),
        (optimizers.sgd(RATE, nesterov=True), "ResourceApplyKerasMomentum"),
        (optimizers.rmsprop(RATE), "ResourceApplyRMSProp"),
        (optimizers.rmsprop(RATE, momentum=0.9), "ResourceApplyRMSProp"),
        (optimizers.adam(RATE), "ResourceApplyAdam"),
        (optimizers.adamw(RATE), "ResourceApplyAdam"),
    ],
)
def test_one_fused_kernel_updates_each_variable(optimizer, kernel):
    variables = [tf.Variable(tf.ones([4, 3])), tf.Variable(tf.ones([3]))]
    optimizer._create_all_weights(variables)

    @tf.function
    def update():
        optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in variables])

    kinds = [operation.type for operation in update.get_concrete_function().graph.get_operations()]
    assert kinds.count(kernel) == len(variables)


def test_the_decay_is_in_the_configuration():
    assert optimizers.adamw(RATE, weight_decay=0.3).get_config()["weight_decay"] == 0.3
