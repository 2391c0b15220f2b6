"""Several labels an example: loss and predictions against NumPy, and runs on tables and arrays."""

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
from trainer.tasks.multilabel import Multilabel

LOGITS = np.array([[2.0, -1.0, 0.5], [-3.0, 1.0, -0.25]], np.float32)
LABELS = np.array([[1, 0, 1], [0, 1, 1]])


def task(**options: Any) -> Multilabel:
    """Return a task whose model returns its features."""
    built = Multilabel(**options)
    built.build(
        SimpleNamespace(
            num_classes=3,
            num_outputs=3,
            model=lambda: lambda x, training: x,
            optimizer=lambda: None,
        )
    )
    return built


BATCH = {"features": tf.constant(LOGITS), "label": tf.constant(LABELS)}


def test_loss_and_accuracy_equal_numpy() -> None:
    p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    entropy = -(LABELS * np.log(p) + (1 - LABELS) * np.log(1 - p))
    losses, metrics = task().eval_step(BATCH)
    np.testing.assert_allclose(losses, entropy.mean(axis=1), rtol=1e-5)
    assert metrics["accuracy"].numpy().tolist() == [1.0, 0.0]
    weighted = task(positive_weights=[1.0, 2.0, 5.0])
    np.testing.assert_allclose(weighted.eval_step(BATCH)[0], losses)
    expected = (np.where(LABELS, [1.0, 2.0, 5.0], 1.0) * entropy).mean(axis=1)
    np.testing.assert_allclose(weighted._train_loss(BATCH)[0], expected, rtol=1e-5)


def test_threshold_decides_what_is_predicted() -> None:
    predictions = task(threshold=0.4).predict_step(BATCH)
    assert predictions["predicted"].numpy().tolist() == [[1, 0, 1], [0, 1, 1]]
    np.testing.assert_allclose(predictions["probabilities"], tf.sigmoid(LOGITS), rtol=1e-6)
    assert task(threshold=0.4).eval_step(BATCH)[1]["accuracy"].numpy().tolist() == [1.0, 1.0]


def test_weights_must_be_as_many_as_the_labels() -> None:
    with pytest.raises(ConfigError) as raised:
        task(positive_weights=[1.0])
    assert raised.value.problems == (
        "task.positive_weights ([1.0]) must have one number for each of the 3 labels; it has 1",
    )


def options(folder: Path) -> list[str]:
    """Write a table with two labels; return the overrides of a run on it."""
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 2)).round(3)
    lines = [f"{a},{b},{int(a > 0)},{str(b > 0.3).lower()}" for a, b in x]
    (folder / "rows.csv").write_text("\n".join(["a,b,warm,dry", *lines]))
    return [
        "task=multilabel",
        "dataset=table",
        f"dataset.path={folder / 'rows.csv'}",
        "dataset.label=[warm,dry]",
        "dataset.label_kind=multilabel",
        "dataset.test_fraction=0.3",
        "model=mlp",
        "model.hidden=[8]",
        "batch.shards=2",
        "task.threshold=0.45",
        "optimizer.learning_rate=0.02",
        "train.steps=24",
    ]


@pytest.mark.slow
def test_metrics_of_the_split_are_those_of_its_predictions(tmp_path: Path) -> None:
    run = engine(tmp_path / "run", *options(tmp_path))
    run.train(lambda: False)
    found = run.evaluator.evaluate(lambda: False).metrics
    chunks = list(run.predictor.predict())
    names = ("label", "predicted", "probabilities")
    label, predicted, probabilities = (
        np.concatenate([chunk[name] for chunk in chunks]) for name in names
    )
    np.testing.assert_array_equal(predicted, probabilities >= np.float32(0.45))
    assert found["accuracy"] == pytest.approx((label == predicted).all(axis=1).mean(), rel=1e-6)
    both = (label & predicted).sum()
    assert found["f1_micro"] == pytest.approx(2 * both / (label.sum() + predicted.sum()))
    assert {"f1/warm", "f1/dry", "average_precision/warm", "f1_macro"} < set(found)
    assert found["average_precision"] > 0.9


@pytest.mark.slow
def test_arrays_of_flags_are_several_labels(tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    write_npy(tmp_path / "data", features, (features > 0).astype(np.int64))
    overrides = ["task=multilabel", "dataset=npy", f"dataset.path={tmp_path / 'data'}"]
    overrides += ["model=softmax", "train.steps=2"]
    run = engine(tmp_path / "run", *overrides)
    run.train(lambda: False)
    assert {"f1/0", "f1/2"} < set(run.evaluator.evaluate(lambda: False).metrics)
