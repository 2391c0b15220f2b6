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


def warmed_up(warmup, rest):
    return np.where(warmup > STEPS, (STEPS + 1) / max(1, warmup), rest)


def half_cosine(progress):
    return 0.5 * (1 + np.cos(np.pi * np.clip(progress, 0, 1)))


def decayed(total, warmup, final):
    fraction = half_cosine((STEPS - warmup) / max(1, total - warmup))
    return 0.3 * warmed_up(warmup, final + (1 - final) * fraction)


def linear(warmup):
    return 1 - np.clip((STEPS - warmup) / (100 - warmup), 0, 1)


def passed(*boundaries):
    return sum((boundary <= STEPS for boundary in boundaries), np.zeros(len(STEPS)))


def waves(*lengths):
    starts = np.cumsum([0, *lengths[:-1]])
    number = np.searchsorted(starts, STEPS, side="right") - 1
    return half_cosine((STEPS - starts[number]) / np.array(lengths)[number])


CASES = {
    "constant": (constant(0.25, 100, 10), np.full(len(STEPS), 0.25)),
    "constant, warm": (constant(0.5, 100, 10, warmup_steps=4), 0.5 * warmed_up(4, 1.0)),
    "cosine": (cosine(0.3, 100, 10), decayed(100, 0, 0.0)),
    "cosine, warm": (
        cosine(0.3, 100, 10, warmup_steps=10, final_fraction=0.25), decayed(100, 10, 0.25)
    ),
    "cosine, all warm": (
        cosine(0.3, 5, 10, warmup_steps=5, final_fraction=0.5), decayed(5, 5, 0.5)
    ),
    "cosine, warm for longer": (cosine(0.3, 5, 10, warmup_steps=9), decayed(5, 9, 0.0)),
    # 3.75 steps, rounded up.
    "cosine, warm by epochs": (cosine(0.3, 40, 2.5, warmup_epochs=1.5), decayed(40, 4, 0.0)),
    "step, none": (step(0.8, 10, 10, boundaries=[], factor=0.5), np.full(len(STEPS), 0.8)),
    "step": (step(0.8, 10, 10, boundaries=[5, 2], factor=0.5), 0.8 * 0.5 ** passed(2, 5)),
    "step, warm": (
        step(0.8, 10, 10, boundaries=[0], factor=0.5, warmup_steps=3),
        0.8 * warmed_up(3, 0.5 ** passed(0)),
    ),
    # An epoch is over at its last step.
    "step, by epochs": (
        step(1.0, 100, 12.5, boundaries=[], boundary_epochs=[1, 3]), 0.1 ** passed(13, 38)
    ),
    "linear": (
        polynomial(0.3, 100, 10, final_fraction=0.1, warmup_steps=10),
        0.3 * warmed_up(10, 0.1 + 0.9 * linear(10)),
    ),
    "square": (polynomial(0.3, 100, 10, power=2.0), 0.3 * linear(0) ** 2),
    "exponential": (
        exponential(0.3, 100, 10, factor=0.9, every_epochs=2), 0.3 * 0.9 ** (STEPS / 20)
    ),
    "staircase": (
        exponential(0.3, 100, 10, factor=0.9, every_epochs=2, staircase=True),
        0.3 * 0.9 ** (STEPS // 20),
    ),
    "inverse_sqrt": (
        inverse_sqrt(0.3, 100, 10, warmup_steps=16), 0.3 * warmed_up(16, 4 / np.sqrt(STEPS + 1))
    ),
    "one_cycle": (
        one_cycle(0.3, 100, 10, rise=0.4, initial_fraction=0.1),
        0.3
        * np.where(STEPS < 40, 1 - 0.9 * half_cosine(STEPS / 40), half_cosine((STEPS - 40) / 60)),
    ),
    "cosine_restarts": (cosine_restarts(0.3, 110, 10, first_epochs=2), 0.3 * waves(20, 40, 80)),
}  # fmt: skip


@pytest.mark.parametrize(("schedule", "expected"), CASES.values(), ids=CASES)
def test_rates_are_those_of_the_formula(schedule, expected):
    rates = [schedule(tf.constant(0, tf.int64)), *map(tf.function(schedule), tf.range(110))]
    assert {rate.dtype for rate in rates} == {tf.float32}
    np.testing.assert_allclose(rates, [expected[0], *expected], rtol=1e-5, atol=1e-6)


def test_warm_up_in_steps_and_epochs_is_refused():
    with pytest.raises(ValueError, match=r"^warmup_steps \(4\) and warmup_epochs \(2\) are both"):
        cosine(0.3, 40, 10, warmup_steps=4, warmup_epochs=2)
