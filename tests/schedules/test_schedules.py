"""Learning rates at chosen steps, against formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.schedules.constant import constant
from trainer.schedules.cosine import cosine
from trainer.schedules.step import step


def values(schedule, steps):
    return np.array([float(schedule(tf.constant(step, tf.int64))) for step in steps])


def warmed_up(steps, warmup, peak, rest):
    steps = np.asarray(steps, np.float64)
    return np.where(steps < warmup, peak * (steps + 1) / max(1, warmup), rest)


def test_constant_stays_at_the_peak():
    assert values(constant(0.25, 100, 10), [0, 1, 50, 99, 1000]).tolist() == [0.25] * 5


def test_constant_starts_with_a_linear_warm_up():
    assert values(constant(0.5, 100, 10, warmup_steps=4), range(6)).tolist() == [
        0.125,
        0.25,
        0.375,
        0.5,
        0.5,
        0.5,
    ]


@pytest.mark.parametrize(
    ("total", "warmup", "final"),
    [(100, 0, 0.0), (100, 10, 0.0), (100, 10, 0.25), (7, 2, 1.0), (5, 5, 0.5), (5, 9, 0.0)],
)
def test_cosine_equals_the_formula(total, warmup, final):
    steps = np.arange(total + 5)
    progress = np.clip((steps - warmup) / max(1, total - warmup), 0, 1)
    expected = warmed_up(
        steps, warmup, 0.3, 0.3 * (final + (1 - final) * 0.5 * (1 + np.cos(np.pi * progress)))
    )
    got = values(cosine(0.3, total, 10, warmup_steps=warmup, final_fraction=final), steps)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-7)


def test_cosine_has_known_values():
    got = values(cosine(1.0, 100, 10, final_fraction=0.2), [0, 50, 100, 150])
    np.testing.assert_allclose(got, [1.0, 0.6, 0.2, 0.2], atol=1e-6)


@pytest.mark.parametrize("boundaries", [[], [3], [2, 5, 6], [0], [5, 2]])
@pytest.mark.parametrize("warmup", [0, 3])
def test_step_equals_the_formula(boundaries, warmup):
    steps = np.arange(10)
    passed = np.array([sum(step >= boundary for boundary in boundaries) for step in steps])
    got = values(step(0.8, 10, 10, boundaries=boundaries, factor=0.5, warmup_steps=warmup), steps)
    np.testing.assert_allclose(got, warmed_up(steps, warmup, 0.8, 0.8 * 0.5**passed), rtol=1e-6)


def test_step_lowers_the_rate_at_the_boundary():
    got = values(step(1.0, 100, 10, boundaries=[10]), [9, 10, 11])
    np.testing.assert_allclose(got, [1.0, 0.1, 0.1], rtol=1e-6)


def test_schedule_is_the_same_in_a_compiled_function():
    schedule = cosine(0.3, 40, 10, warmup_steps=5)
    compiled = tf.function(schedule)
    steps = [0, 4, 5, 20, 39]
    assert [float(compiled(tf.constant(step, tf.int64))) for step in steps] == values(
        schedule, steps
    ).tolist()
    assert compiled(tf.constant(0, tf.int64)).dtype == tf.float32


@pytest.mark.parametrize("build", [constant, cosine, step])
def test_warm_up_in_epochs_is_the_same_as_in_steps(build):
    options = {"boundaries": [8]} if build is step else {}
    epochs = build(0.3, 40, 2.5, warmup_epochs=1.5, **options)
    steps = build(0.3, 40, 2.5, warmup_steps=4, **options)  # 3.75, rounded up
    np.testing.assert_array_equal(values(epochs, range(42)), values(steps, range(42)))


def test_step_lowers_the_rate_after_epochs():
    by_epochs = step(1.0, 100, 12.5, boundaries=[], boundary_epochs=[1, 3])
    by_steps = step(
        1.0, 100, 12.5, boundaries=[13, 38]
    )  # an epoch is over at the step that ends it
    np.testing.assert_array_equal(values(by_epochs, range(50)), values(by_steps, range(50)))


def test_warm_up_in_steps_and_epochs_is_refused():
    with pytest.raises(
        ValueError, match=r"^warmup_steps \(4\) and warmup_epochs \(2\) are both set"
    ):
        cosine(0.3, 40, 10, warmup_steps=4, warmup_epochs=2)
