"""Further learning-rate schedules, against formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.schedules.cosine_restarts import cosine_restarts
from trainer.schedules.exponential import exponential
from trainer.schedules.inverse_sqrt import inverse_sqrt
from trainer.schedules.one_cycle import one_cycle
from trainer.schedules.polynomial import polynomial

STEPS = np.arange(110)


def values(schedule):
    return np.array([float(schedule(tf.constant(step, tf.int64))) for step in STEPS])


def half_cosine(progress):
    return 0.5 * (1 + np.cos(np.pi * np.clip(progress, 0, 1)))


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("power", [1.0, 2.0, 0.5])
def test_polynomial_equals_the_formula(power, warmup):
    rest = 0.1 + 0.9 * (1 - np.clip((STEPS - warmup) / (100 - warmup), 0, 1)) ** power
    expected = 0.3 * np.where(warmup > STEPS, (STEPS + 1) / max(1, warmup), rest)
    got = values(polynomial(0.3, 100, 10, power=power, final_fraction=0.1, warmup_steps=warmup))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-7)


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
    "build", [polynomial, exponential, inverse_sqrt, one_cycle, cosine_restarts]
)
def test_schedule_is_the_same_in_a_compiled_function(build):
    schedule = build(0.3, 40, 10)
    compiled = tf.function(schedule)
    for step in (0, 5, 39):
        number = tf.constant(step, tf.int64)
        assert abs(float(compiled(number)) - float(schedule(number))) <= 1e-7
    assert compiled(tf.constant(0, tf.int64)).dtype == tf.float32
