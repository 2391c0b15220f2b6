"""Regression: its loss and predictions against NumPy, and the same bits however it is run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.small_runs import engine
from tests.support.toy_sources import write_npy
from trainer.errors import ConfigError
from trainer.tasks.regression import Regression

OUTPUTS = np.array([[0.5, -2.0], [1.5, 0.25], [-0.2, 3.0]], np.float32)
TARGETS = np.array([[105.0, -0.1], [120.0, 0.3], [95.0, 0.2]], np.float32)
SCALE = [(100.0, 10.0), (0.1, 0.2)]


def task(scale: list[tuple[float, float]] | None = SCALE, **options: Any) -> Regression:
    """Return a task whose model returns its features."""
    built = Regression(**options)
    built.build(
        SimpleNamespace(
            num_classes=2,
            num_outputs=3,
            target_scale=scale,
            model=lambda: lambda x, training: x,
            optimizer=lambda: None,
        )
    )
    return built


def batch() -> dict[str, tf.Tensor]:
    # A model may have more outputs than there are targets.
    more = np.concatenate([OUTPUTS, np.full((3, 1), 7.0, np.float32)], axis=1)
    return {"features": tf.constant(more), "label": tf.constant(TARGETS)}


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
def test_loss_is_that_of_normalized_targets_and_mae_in_their_unit(loss: str) -> None:
    means, deviations = np.array(SCALE, np.float64).T
    errors = OUTPUTS - (TARGETS - means) / deviations
    size = np.abs(errors)
    expected = {
        "squared": errors**2,
        "absolute": size,
        "huber": np.where(size <= 0.8, errors**2 / 2, 0.8 * (size - 0.4)),
    }[loss]
    losses, metrics = task(loss=loss, delta=0.8).eval_step(batch())
    # float32: the targets are about 100, of which a rounding is 4e-6.
    np.testing.assert_allclose(losses, expected.mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["mae"], (size * deviations).mean(axis=1), rtol=1e-5)


def test_predictions_are_in_the_unit_of_the_targets() -> None:
    means, deviations = np.array(SCALE, np.float64).T
    predicted = task().predict_step(batch())["prediction"]
    np.testing.assert_allclose(predicted, OUTPUTS * deviations + means, rtol=1e-6)
    plain = task(scale=None).predict_step(batch())["prediction"]
    np.testing.assert_array_equal(plain, OUTPUTS)


DIABETES = (
    "task=regression",
    "dataset=diabetes",
    "model=mlp",
    "model.hidden=[8]",
    "model.dropout=0.2",
    "batch.shards=2",
    "evaluate.every_steps=4",
    "checkpoint.every_steps=2",
)


@pytest.mark.slow
def test_metrics_of_the_split_are_those_of_its_predictions(tmp_path: Path) -> None:
    run = engine(tmp_path, *DIABETES)
    run.train(lambda: False)
    found = run.evaluator.evaluate(lambda: False).metrics
    chunks = list(run.predictor.predict())
    label, prediction = (
        np.concatenate([chunk[name] for chunk in chunks]).astype(np.float64)
        for name in ("label", "prediction")
    )
    errors = prediction - label
    assert label.min() > 25
    assert label.max() < 347  # in the unit of the table
    assert found["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-6)
    assert found["r2"] == pytest.approx(1 - (errors**2).mean() / label.var(), rel=1e-6)


@pytest.mark.slow
def test_arrays_with_a_fraction_are_targets(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 3)).astype(np.float32)
    labels = features[:, :2] * 2 + 1
    write_npy(tmp_path / "data", features, labels)
    options = ["task=regression", "dataset=npy", f"dataset.path={tmp_path / 'data'}"]
    options += ["model=softmax", "optimizer.learning_rate=0.1"]
    options += ["train.steps=60", "evaluate.every_epochs=null", "checkpoint.every_epochs=null"]
    run = engine(tmp_path / "run", *options)
    run.train(lambda: False)
    found = run.evaluator.evaluate(lambda: False).metrics
    assert found["r2"] > 0.9
    assert "rmse/1" in found


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["task=regression"], r"task \(Regression\) .* choose task=classification, or a dataset of "
         r"numbers \(dataset.label_kind=number\)"),
        (["dataset=diabetes", "model=softmax"], r"task \(Classification\) learns one class an "
         r"example, .* choose task=regression, or .* \(dataset.label_kind=class\)"),
        ([*DIABETES, "metrics=[confusion,top_5]"], r"metrics.confusion .* is for one class an"),
        ([*DIABETES, "metrics=[]", "summary.misclassified=3"], r"summary.misclassified \(3\)"),
    ],
)  # fmt: skip
def test_what_is_for_other_labels_is_refused(
    tmp_path: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        engine(tmp_path, *overrides)
