"""Updates against a reference in NumPy float64, and their kernels."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from trainer.optimizers.adafactor import adafactor as build_adafactor
from trainer.optimizers.adagrad import adagrad as build_adagrad
from trainer.optimizers.adamw import adamw as build_adamw
from trainer.optimizers.lamb import lamb as build_lamb
from trainer.optimizers.lars import lars as build_lars
from trainer.optimizers.lion import lion as build_lion
from trainer.optimizers.muon import muon as build_muon
from trainer.optimizers.nadam import nadam as build_nadam
from trainer.optimizers.rmsprop import rmsprop as build_rmsprop
from trainer.optimizers.sgd import sgd as build_sgd
from trainer.schedules.step import step as step_schedule

RATE, STEPS = 0.05, 6


def start():
    random = np.random.RandomState(0)
    return random.standard_normal((4, 3)), random.standard_normal(3)


def gradients():
    random = np.random.RandomState(1)
    return [(random.standard_normal((4, 3)), random.standard_normal(3)) for _ in range(STEPS)]


def apply(optimizer):
    """Return a matrix and a vector after six updates."""
    variables = [tf.Variable(value, dtype=tf.float32) for value in start()]
    for step in gradients():
        pairs = [
            (tf.constant(gradient, tf.float32), variable)
            for gradient, variable in zip(step, variables, strict=True)
        ]
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
    return [variable.numpy() for variable in variables]


def sgd(rate):
    def update(x, g, state, t):
        state["v"] = 0.9 * state.get("v", 0.0) - rate(t - 1) * g
        return x + state["v"]

    return update


def lars(trust, weight_decay):
    def update(x, g, state, t):
        if x.ndim > 1:
            g = g + weight_decay * x
            g = g * trust * np.linalg.norm(x) / np.linalg.norm(g)
        state["v"] = 0.9 * state.get("v", 0.0) + RATE * g
        return x - state["v"]

    return update


def lamb(beta_1, beta_2, weight_decay):
    def update(x, g, state, t):
        state["m"] = beta_1 * state.get("m", 0.0) + (1 - beta_1) * g
        state["v"] = beta_2 * state.get("v", 0.0) + (1 - beta_2) * g * g
        u = state["m"] / (1 - beta_1**t) / (np.sqrt(state["v"] / (1 - beta_2**t)) + 1e-6)
        if x.ndim > 1:
            u = u + weight_decay * x
            u = u * np.linalg.norm(x) / np.linalg.norm(u)
        return x - RATE * u

    return update


def nadam(beta_1, beta_2, epsilon):
    def update(x, g, state, t):
        state["m"] = beta_1 * state.get("m", 0.0) + (1 - beta_1) * g
        state["v"] = beta_2 * state.get("v", 0.0) + (1 - beta_2) * g * g
        rate = RATE * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        ahead = beta_1 * state["m"] + (1 - beta_1) * g
        return x - rate * ahead / (np.sqrt(state["v"]) + epsilon)

    return update


def adafactor(power, threshold, weight_decay):
    def size(values):
        return np.sqrt(np.mean(values**2))

    def update(x, g, state, t):
        kept = 1 - t**-power
        if x.ndim > 1:
            for name, axis in (("row", 1), ("column", 0)):
                state[name] = kept * state.get(name, 0.0) + (1 - kept) * np.mean(g * g, axis)
            square = np.outer(state["row"], state["column"]) / np.mean(state["row"])
        else:
            square = state["v"] = kept * state.get("v", 0.0) + (1 - kept) * g * g
        u = g / np.sqrt(square)
        u = u / max(1.0, size(u) / threshold)
        return x - RATE * (max(1e-3, size(x)) * u + weight_decay * x * (x.ndim > 1))

    return update


def muon(momentum, iterations, weight_decay):
    def vector(x, g, state, t):
        state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        state["v"] = 0.95 * state.get("v", 0.0) + 0.05 * g * g
        scale = np.sqrt(state["v"] / (1 - 0.95**t)) + 1e-8
        return x - RATE * state["m"] / (1 - 0.9**t) / scale

    def update(x, g, state, t):
        if x.ndim < 2:
            return vector(x, g, state, t)
        state["m"] = momentum * state.get("m", 0.0) + g
        u = (g + momentum * state["m"]).T
        u /= np.linalg.norm(u)
        for _ in range(iterations):
            a = u @ u.T
            u = 3.4445 * u + (-4.7750 * a + 2.0315 * a @ a) @ u
        return x - RATE * (0.2 * np.sqrt(max(x.shape)) * u.T + weight_decay * x)

    return update


def reference(update):
    values, states = list(start()), [{}, {}]
    for t, step in enumerate(gradients(), start=1):
        values = [update(x, g, state, t) for x, g, state in zip(values, step, states, strict=True)]
    return values


SCHEDULE = step_schedule(RATE, STEPS, 1.0, boundaries=[2, 4], factor=0.5)

CASES = {
    "schedule": (build_sgd(SCHEDULE), sgd(lambda t: RATE * 0.5 ** (t // 2))),
    "lars with decay": (build_lars(RATE, trust_coefficient=0.5, weight_decay=0.2), lars(0.5, 0.2)),
    "lamb with options": (
        build_lamb(RATE, beta_1=0.5, beta_2=0.9, weight_decay=0.5),
        lamb(0.5, 0.9, 0.5),
    ),
    "nadam with options": (
        build_nadam(RATE, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
        nadam(0.5, 0.9, 1e-3),
    ),
    "adafactor with options": (
        build_adafactor(RATE, decay_power=0.5, clip_threshold=0.5, weight_decay=0.3),
        adafactor(0.5, 0.5, 0.3),
    ),
    "muon with options": (
        build_muon(RATE, momentum=0.5, iterations=2, weight_decay=0.3),
        muon(0.5, 2, 0.3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_optimizer_updates_equal_the_reference(case):
    optimizer, update = CASES[case]
    # Elementwise float32 operations: some ten roundings of 2**-24 to an update, of numbers near 1.
    for got, expected in zip(apply(optimizer), reference(update), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "build", [build_sgd, build_rmsprop, build_adagrad, build_nadam, build_adamw, build_lion]
)
def test_matrices_decay_before_the_update(build):
    """Most have the updates of Keras, see tests/tasks/keras/test_compiled_optimizer.py."""
    plain, decaying = (build(RATE, weight_decay=decay) for decay in (0.0, 0.3))
    expected, found = ([tf.Variable(x, dtype=tf.float32) for x in start()] for _ in range(2))
    for step in gradients():
        values = [tf.constant(gradient, tf.float32) for gradient in step]
        expected[0].assign(expected[0] * (1 - RATE * 0.3))
        plain.apply_gradients(zip(values, expected, strict=True))
        decaying.apply_gradients(zip(values, found, strict=True))
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-6)


@pytest.mark.parametrize("build", [build_lars, build_lamb])
def test_layers_of_zeros_move_at_the_plain_rate(build):
    variable = tf.Variable(tf.zeros([2, 2]))
    build(0.1).apply_gradients([(tf.ones([2, 2]), variable)])
    assert np.isfinite(variable.numpy()).all()
    assert variable.numpy().max() < -0.05


def test_weight_decay_follows_the_schedule():
    variable = tf.Variable([[1.0]])
    schedule = step_schedule(0.5, 9, 1.0, boundaries=[1], factor=0.5)
    optimizer = build_adamw(schedule, weight_decay=0.5)
    for expected in (0.75, 0.75 * 0.875):
        optimizer.apply_gradients([(tf.zeros([1, 1]), variable)])
        np.testing.assert_allclose(variable.numpy(), [[expected]], rtol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "kernel"),
    [
        (build_sgd(RATE), "ResourceApplyKerasMomentum"),
        (build_adamw(RATE), "ResourceApplyAdam"),
        (build_adagrad(RATE, weight_decay=0.1), "ResourceApplyAdagradV2"),
    ],
)
def test_optimizer_updates_each_variable_with_one_fused_kernel(optimizer, kernel):
    variables = [tf.Variable(tf.ones([4, 3])), tf.Variable(tf.ones([3]))]
    optimizer._create_all_weights(variables)

    @tf.function
    def update():
        optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in variables])

    kinds = [operation.type for operation in update.get_concrete_function().graph.get_operations()]
    assert kinds.count(kernel) == len(variables)


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix():
    shapes = {(4, 3): {(4,), (3,)}, (2, 2, 4, 3): {(2, 2, 4), (2, 2, 3)}, (5,): {(5,)}}
    for shape, expected in shapes.items():
        optimizer = build_adafactor(RATE)
        variable = tf.Variable(tf.ones(shape))
        optimizer.apply_gradients([(tf.ones(shape), variable)])
        slots = [slot for slot in optimizer.variables() if slot.shape.rank]
        assert {tuple(slot.shape) for slot in slots} == expected
        assert np.isfinite(variable.numpy()).all()


@pytest.mark.parametrize("shape", [(6, 3), (3, 3, 2, 4)])
def test_muon_makes_an_update_nearly_orthogonal_and_as_large_as_one_of_adam(shape):
    gradient = np.random.RandomState(2).standard_normal(shape)
    variable = tf.Variable(tf.zeros(shape))
    build_muon(1.0, weight_decay=0.0).apply_gradients(
        [(tf.constant(gradient, tf.float32), variable)]
    )
    update = -variable.numpy().reshape(-1, shape[-1])
    sizes = np.linalg.svd(update, compute_uv=False) / (0.2 * max(update.shape) ** 0.5)
    # The iteration is steep, not exact: singular values end between 0.7 and 1.2.
    assert sizes.min() > 0.5
    assert sizes.max() < 1.3
    assert np.vdot(update, gradient) > 0


@pytest.mark.parametrize(
    ("name", "options"),
    [("token/embeddings", {}), ("text/tokens", {}), ("head", {"adam": ["ead"]})],
)
def test_muon_updates_tables_and_chosen_weights_by_adam(name, options):
    table = tf.Variable(tf.zeros([6, 3]), name=name)
    optimizer = build_muon(RATE, **options)
    optimizer.apply_gradients([(tf.ones([6, 3]), table)])
    np.testing.assert_allclose(table.numpy(), np.full((6, 3), -RATE), rtol=1e-5)


def test_no_update_is_lost_where_workers_do_not_wait_for_each_other():
    """Each moves a weight by the learning rate, a power of two: their sum is exact."""
    variable = tf.Variable(tf.zeros([3, 2]))
    optimizer = build_lion(2.0**-10)
    optimizer._create_all_weights([variable])

    @tf.function
    def update():
        optimizer.apply_gradients([(tf.ones_like(variable), variable)])

    update()
    threads = [
        threading.Thread(target=lambda: [update() for _ in range(50)], daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(variable.numpy(), np.full((3, 2), -201 * 2.0**-10))
    assert int(optimizer.iterations) == 201
