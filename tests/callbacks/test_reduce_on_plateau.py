"""ReduceOnPlateau: the same rates on every strategy, and the same bits after a stop."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import final_variables, only_run, run
from tests.support.training import SMALL, assert_same_bits, engine, train, weights
from trainer.callbacks.reduce_on_plateau import ReduceOnPlateau
from trainer.errors import ConfigError

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


def rates(run_dir: Path) -> list[float]:
    """Return the logged learning rates."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["learning_rate"] for line in lines if line["split"] == "train"]


def rates_after(callback: ReduceOnPlateau, losses: list[float]) -> list[float]:
    """Return the learning rate after each evaluation, at a schedule of 1."""
    rates = []
    for step, loss in enumerate(losses):
        assert callback.on_evaluate(step, {"loss": loss}) is False
        rates.append(float(callback.adjust_learning_rate(tf.constant(1.0))))
    return rates


def test_reduces_by_patience_cooldown_and_min_learning_rate() -> None:
    halves = ReduceOnPlateau(factor=0.5, patience=2)
    assert rates_after(halves, [3, 2, 2, 2, 1, 1, 1, 1, 1]) == [
        1,
        1,
        1,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
        0.125,
    ]
    cools = ReduceOnPlateau(factor=0.5, patience=1, cooldown=2)
    assert rates_after(cools, [1, 1, 1, 1, 1, 1, 1]) == [1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    floored = ReduceOnPlateau(factor=0.5, patience=1, min_learning_rate=0.375)
    assert rates_after(floored, [1, 1, 1, 1]) == [1, 0.5, 0.375, 0.375]
    # A schedule below the minimum, in its warm-up for example, is not raised.
    assert float(floored.adjust_learning_rate(tf.constant(0.25))) == 0.25
    upward = ReduceOnPlateau(metric="loss", mode="max", factor=0.5, patience=1)
    assert rates_after(upward, [1, 2, 2]) == [1, 1, 0.5]


def test_unknown_metric_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"callbacks.reduce_on_plateau.metric \(acc\) is not evaluated; "
            r"choose one of loss, accuracy"
        ),
    ):
        ReduceOnPlateau(metric="acc").on_evaluate(1, {"loss": 1.0, "accuracy": 0.5})


def test_logged_rate_is_the_one_that_trains(tmp_path: Path) -> None:
    reduced = train(tmp_path / "reduced", *REDUCES)
    np.testing.assert_allclose(rates(tmp_path / "reduced"), RATES, rtol=1e-6)
    # The same rates from a schedule: halving is exact.
    steps = ["schedule=step", "schedule.boundaries=[4,6]", "schedule.factor=0.5"]
    scheduled = train(
        tmp_path / "scheduled", *(item for item in REDUCES if "callbacks" not in item), *steps
    )
    assert weights(reduced).tobytes() == weights(scheduled).tobytes()


@pytest.mark.parametrize(
    "at", [3, pytest.param(4, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_resumed_run_ends_with_same_bits(tmp_path: Path, at: int) -> None:
    straight = train(tmp_path / "straight", *REDUCES)
    train(tmp_path / "stopped", *REDUCES, stop=lambda run_engine: run_engine.step >= at)
    assert_same_bits(straight, train(tmp_path / "stopped", *REDUCES))
    assert rates(tmp_path / "stopped") == rates(tmp_path / "straight")


def test_callback_changes_no_bit_until_it_reduces(tmp_path: Path) -> None:
    patient = [item for item in REDUCES if "patience" not in item]
    without = [item for item in REDUCES if "callbacks" not in item]
    assert (
        weights(train(tmp_path / "with", *patient)).tobytes()
        == weights(train(tmp_path / "without", *without)).tobytes()
    )


@pytest.mark.parametrize(
    "strategy", ["mirrored", pytest.param("central_storage", marks=pytest.mark.slow)]
)
def test_two_replicas_agree_with_one(tmp_path: Path, strategy: str) -> None:
    one = train(tmp_path / "one", *REDUCES)
    two = train(tmp_path / "two", *REDUCES, f"strategy={strategy}", "strategy.virtual_devices=2")
    assert rates(tmp_path / "two") == rates(tmp_path / "one")
    assert np.abs(weights(one) - weights(two)).max() <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["multi_worker", "parameter_server"])
def test_processes_agree_with_one(tmp_path: Path, strategy: str) -> None:
    train(tmp_path / "one", *REDUCES)
    code, _, err = run(tmp_path, *SMALL, *REDUCES, f"strategy={strategy}", "strategy.workers=2")
    assert code == 0, err
    several = only_run(tmp_path)
    assert rates(several) == rates(tmp_path / "one")
    one, two = (final_variables(run_dir) for run_dir in (tmp_path / "one", several))
    models = [name for name in one if name.startswith("models")]
    assert models
    assert max(np.abs(one[name] - two[name]).max() for name in models) <= 1e-6


def test_step_reads_scale_variable(tmp_path: Path) -> None:
    run_engine = engine(tmp_path, *REDUCES)
    run_engine.state.callbacks["reduce_on_plateau"].scale.assign(0.25)
    assert run_engine.loop.learning_rates(0) == {"learning_rate": pytest.approx(0.0025)}
