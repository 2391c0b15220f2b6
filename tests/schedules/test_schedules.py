"""Learning rates at all steps, against formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.schedules.constant import constant
from trainer.schedules.cosine import cosine
from trainer.schedules.cosine_restarts import cosine_restarts
from trainer.schedules.exponential import exponential
from trainer.schedules.inverse_sqrt import inverse_sqrt
from trainer.schedules.one_cycle import one_cycle
from trainer.schedules.polynomial import polynomial
from trainer.schedules.step import step

STEPS = np.arange(110)


def values(schedule, steps=STEPS):
    return np.array([float(schedule(tf.constant(step, tf.int64))) for step in steps])


def warmed_up(warmup, rest, steps=STEPS):
    return np.where(steps < warmup, (steps + 1) / max(1, warmup), rest)


def half_cosine(progress):
    return 0.5 * (1 + np.cos(np.pi * np.clip(progress, 0, 1)))


def test_constant_stays_at_the_peak_after_a_linear_warm_up():
    assert values(constant(0.25, 100, 10), [0, 1, 50, 99, 1000]).tolist() == [0.25] * 5
    rates = [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert values(constant(0.5, 100, 10, warmup_steps=4), range(6)).tolist() == rates


@pytest.mark.parametrize(
    ("total", "warmup", "final"), [(100, 0, 0.0), (100, 10, 0.25), (5, 5, 0.5), (5, 9, 0.0)]
)
def test_cosine_equals_the_formula(total, warmup, final):
    rest = final + (1 - final) * half_cosine((STEPS - warmup) / max(1, total - warmup))
    rates = values(cosine(0.3, total, 10, warmup_steps=warmup, final_fraction=final))
    np.testing.assert_allclose(rates, 0.3 * warmed_up(warmup, rest), rtol=0, atol=1e-7)


@pytest.mark.parametrize("boundaries", [[], [0], [5, 2]])
@pytest.mark.parametrize("warmup", [0, 3])
def test_step_equals_the_formula(boundaries, warmup):
    passed = np.array([sum(step >= boundary for boundary in boundaries) for step in STEPS])
    rates = values(step(0.8, 10, 10, boundaries=boundaries, factor=0.5, warmup_steps=warmup))
    np.testing.assert_allclose(rates, 0.8 * warmed_up(warmup, 0.5**passed), rtol=1e-6)


def test_step_lowers_the_rate_after_epochs():
    by_epochs = step(1.0, 100, 12.5, boundaries=[], boundary_epochs=[1, 3])
    by_steps = step(1.0, 100, 12.5, boundaries=[13, 38])  # an epoch is over at its last step
    np.testing.assert_array_equal(values(by_epochs), values(by_steps))


@pytest.mark.parametrize(("power", "warmup"), [(1.0, 10), (2.0, 0)])
def test_polynomial_equals_the_formula(power, warmup):
    rest = 0.1 + 0.9 * (1 - np.clip((STEPS - warmup) / (100 - warmup), 0, 1)) ** power
    rates = values(polynomial(0.3, 100, 10, power=power, final_fraction=0.1, warmup_steps=warmup))
    np.testing.assert_allclose(rates, 0.3 * warmed_up(warmup, rest), rtol=0, atol=1e-7)


@pytest.mark.parametrize("staircase", [False, True])
def test_exponential_equals_the_formula(staircase):
    passed = STEPS / 20
    expected = 0.3 * 0.9 ** (np.floor(passed) if staircase else passed)
    got = values(exponential(0.3, 100, 10, factor=0.9, every_epochs=2, staircase=staircase))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_inverse_sqrt_meets_its_warm_up_and_equals_the_formula():
    expected = 0.3 * np.where(STEPS < 16, (STEPS + 1) / 16, 4 / np.sqrt(STEPS + 1))
    got = values(inverse_sqrt(0.3, 100, 10, warmup_steps=16))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert got.argmax() == 15


def test_one_cycle_rises_and_falls():
    up = 1 - 0.9 * half_cosine(STEPS / 40)
    down = half_cosine((STEPS - 40) / 60)
    got = values(one_cycle(0.3, 100, 10, rise=0.4, initial_fraction=0.1))
    np.testing.assert_allclose(got, 0.3 * np.where(STEPS < 40, up, down), rtol=0, atol=1e-7)
    assert got.argmax() == 40


def test_cosine_restarts_at_the_peak_for_longer_each_time():
    starts, lengths = [0, 20, 60], [20, 40, 80]
    expected = np.zeros(len(STEPS))
    for start, length in zip(starts, lengths, strict=True):
        wave = 0.3 * half_cosine((STEPS - start) / length)
        expected = np.where(start <= STEPS, wave, expected)
    got = values(cosine_restarts(0.3, 110, 10, first_epochs=2))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "build", [cosine, polynomial, exponential, inverse_sqrt, one_cycle, cosine_restarts]
)
def test_schedule_is_the_same_in_a_compiled_function(build):
    schedule = build(0.3, 40, 10)
    compiled = tf.function(schedule)
    for number in (0, 5, 39):
        step = tf.constant(number, tf.int64)
        assert abs(float(compiled(step)) - float(schedule(step))) <= 1e-7
    assert compiled(tf.constant(0, tf.int64)).dtype == tf.float32


def test_warm_up_in_epochs_is_the_same_as_in_steps():
    epochs = cosine(0.3, 40, 2.5, warmup_epochs=1.5)
    steps = cosine(0.3, 40, 2.5, warmup_steps=4)  # 3.75, rounded up
    np.testing.assert_array_equal(values(epochs), values(steps))
    with pytest.raises(ValueError, match=r"^warmup_steps \(4\) and warmup_epochs \(2\) are both"):
        cosine(0.3, 40, 10, warmup_steps=4, warmup_epochs=2)
