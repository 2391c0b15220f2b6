"""ReduceOnPlateau: the same rates on every strategy, and the same bits after a stop."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import assert_same_bits, train, weights
from trainer.callbacks.reduce_on_plateau import ReduceOnPlateau

REDUCES = (
    "callbacks=reduce_on_plateau",
    "callbacks.reduce_on_plateau.factor=0.5",
    "callbacks.reduce_on_plateau.patience=1",
    "callbacks.reduce_on_plateau.min_delta=1e6",
    "evaluate.every_steps=2",
    "checkpoint.every_steps=1",
    "summary.every_steps=1",
    "optimizer.learning_rate=0.01",
    "train.steps_per_loop=1",
)
"""Of evaluations at 2, 4, 6 and 8, the first is the best: none improves by `min_delta` after it."""
RATES = [0.01] * 4 + [0.005] * 2 + [0.0025] * 2


def rates(run_dir):
    """Return the logged learning rates."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["learning_rate"] for line in lines if line["split"] == "train"]


def rates_after(callback, losses):
    """Return the learning rate after each evaluation, at a schedule of 1."""
    rates = []
    for step, loss in enumerate(losses):
        assert callback.on_evaluate(step, {"loss": loss}) is False
        rates.append(float(callback.adjust_learning_rate(tf.constant(1.0))))
    return rates


def test_reduces_by_patience_cooldown_and_min_learning_rate():
    halves = ReduceOnPlateau(factor=0.5, patience=2)
    halved = [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert rates_after(halves, [3, 2, 2, 2, 1, 1, 1, 1, 1]) == halved
    cools = ReduceOnPlateau(factor=0.5, patience=1, cooldown=2)
    assert rates_after(cools, [1, 1, 1, 1, 1, 1, 1]) == [1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    floored = ReduceOnPlateau(factor=0.5, patience=1, min_learning_rate=0.375)
    assert rates_after(floored, [1, 1, 1, 1]) == [1, 0.5, 0.375, 0.375]
    # A schedule below the minimum, in its warm-up for example, is not raised.
    assert float(floored.adjust_learning_rate(tf.constant(0.25))) == 0.25
    upward = ReduceOnPlateau(metric="loss", mode="max", factor=0.5, patience=1)
    assert rates_after(upward, [1, 2, 2]) == [1, 1, 0.5]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Return the directory and the variables of a run on one device."""
    path = tmp_path_factory.mktemp("one")
    return path, train(path, *REDUCES)


@pytest.mark.slow
def test_logged_rate_is_the_one_that_trains(one, tmp_path):
    path, reduced = one
    np.testing.assert_allclose(rates(path), RATES, rtol=1e-6)
    # The same rates from a schedule: halving is exact.
    steps = ["schedule=step", "schedule.boundaries=[4,6]", "schedule.factor=0.5"]
    scheduled = train(
        tmp_path / "scheduled", *(item for item in REDUCES if "callbacks" not in item), *steps
    )
    assert weights(reduced).tobytes() == weights(scheduled).tobytes()


@pytest.mark.slow
def test_resumed_run_ends_with_same_bits(one, tmp_path):
    path, straight = one
    train(tmp_path, *REDUCES, stop=lambda run_engine: run_engine.step >= 5)
    assert_same_bits(straight, train(tmp_path, *REDUCES))
    assert rates(tmp_path) == rates(path)
