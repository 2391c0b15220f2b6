"""The values of metrics and their names, and images of misclassified examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from tests.support.command_line import ROOT
from tests.support.toy_metrics import Margin
from trainer.cli.compose import compose
from trainer.config.directions import Directions
from trainer.config.instantiate import instantiate
from trainer.datasets.digits import digits
from trainer.engine.evaluation.row_metrics import (
    MisclassifiedExamples,
    metric_values,
    predicted_classes,
    require_evaluated,
    update_metrics,
    validate_metrics,
)
from trainer.errors import ConfigError
from trainer.metrics.per_class import PerClass
from trainer.protocols import label_kind_of
from trainer.summaries.figures import add_captions

OF_LABELS = [
    file
    for file in sorted((ROOT / "conf" / "metrics").glob("*.yaml"))
    if file.stem != "gan_quality"  # it judges generated examples, which needs a trained classifier
]


@pytest.mark.parametrize("file", OF_LABELS, ids=lambda file: file.stem)
def test_every_configured_choice_makes_a_metric(file):
    ((name, node),) = yaml.safe_load(file.read_text()).items()
    assert name == file.stem
    metric = instantiate(node, f"metrics.{name}")
    kind = label_kind_of(metric)
    names = validate_metrics({name: metric}, 10, ("loss", "accuracy"), kind)
    metric.reset_state()
    predictions = np.eye(10, dtype=np.float32)
    labels = {"class": np.arange(10), "number": predictions, "multilabel": predictions.astype(int)}
    update_metrics({name: metric}, labels[kind], predictions)
    assert list(metric_values(name, metric)) == names
    with pytest.raises(ConfigError, match=f"unknown key 'metrics.{name}.nonsense'"):
        instantiate({**node, "nonsense": 1}, f"metrics.{name}")


def test_metric_of_keras_3_is_exact_over_blocks_of_a_split():
    name = "SparseTopKCategoricalAccuracy"
    own = {"metric": instantiate({"_target_": f"keras.metrics.{name}", "k": 2}, "metrics.metric")}
    twin = {"metric": getattr(tf.keras.metrics, name)(k=2)}
    assert validate_metrics(own, 3, ("loss",)) == ["metric"]
    labels = np.arange(50) % 3
    probabilities = np.random.default_rng(0).dirichlet([1.0] * 3, 50).astype(np.float32)
    for metrics in (own, twin):
        metrics["metric"].reset_state()
        for start in (0, 20, 40):
            rows = slice(start, start + 20)
            update_metrics(metrics, labels[rows], probabilities[rows])
    value = metric_values("metric", own["metric"])
    assert value == pytest.approx(metric_values("metric", twin["metric"]), rel=1e-6)


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"accuracy": Margin()}, "metrics.accuracy gives 'accuracy', which the task gives too"),
        ({"x": Margin(called="step")}, "metrics.x gives 'step', which each line"),
        ({"a": PerClass(), "b": PerClass()}, "metrics.b gives 'precision', which metrics.a gives"),
    ],
)
def test_duplicate_names_are_refused(metrics, problem):
    with pytest.raises(ConfigError, match=problem):
        validate_metrics(metrics, 3, ("loss", "accuracy"))


@pytest.mark.parametrize("metric", [tf.keras.metrics.AUC(), keras.metrics.F1Score()])
def test_keras_metric_not_for_classes_is_refused_in_one_line(metric):
    with pytest.raises(ConfigError) as caught:
        validate_metrics({"x": metric}, 10, ())
    (line,) = caught.value.problems
    assert line.startswith(f"metrics.x ({type(metric).__name__}) must give numbers for labels of")


def test_metric_references_must_be_evaluated():
    overrides = [
        "metrics=top_5", "checkpoint.best.metric=top_5", "callbacks=early_stopping",
        "callbacks.early_stopping.metric=top_5", "sweep.metric=top_5",
    ]  # fmt: skip
    declared = Directions({"loss": "min", "top_5": "max"})
    experiment = compose(overrides)
    require_evaluated(experiment, ["loss", "top_5"], declared)
    with pytest.raises(ConfigError, match=r"best\.metric \(top_5\) declares no direction"):
        require_evaluated(experiment, ["loss", "top_5"], Directions())
    with pytest.raises(ConfigError) as caught:
        require_evaluated(experiment, ["loss", "top_50"], declared)
    keys = ("checkpoint.best.metric", "sweep.metric", "callbacks.early_stopping.metric")
    for key, problem in zip(keys, caught.value.problems, strict=True):
        assert problem.startswith(f"{key} (top_5) must be a metric of the evaluation")
        assert problem.endswith("did you mean 'top_50'?")
    own = compose([])
    own.callbacks = {"mine": {"_target_": "own.Callback", "metric": "cosine"}}
    for experiment in (compose([]), own):
        require_evaluated(experiment, ["loss"], declared)


NAMES = [str(number) for number in range(10)]


def test_images_show_most_probable_errors_first():
    dataset = digits()
    batch = dataset.test.fetch(np.arange(6))
    labels = batch["label"].numpy()
    wrong = (labels + 1) % 10
    misclassified = MisclassifiedExamples(3, dataset, NAMES)
    highest = [0.5, 0.9, 0.7, 0.9, 0.99, 0.6]
    predicted = [*wrong[:4], labels[4], wrong[5]]
    values = np.zeros((6, 10), np.float32)
    for row, (column, probability) in enumerate(zip(predicted, highest, strict=True)):
        values[row] = (1 - probability) / 9
        values[row, column] = probability
    for part in (slice(0, 2), slice(2, 6)):
        rows = {"id": np.arange(6), "label": labels, "probabilities": values}
        misclassified.update({name: column[part] for name, column in rows.items()})
    pixels = np.rint(batch["features"].numpy() * (255 / 16)).astype(np.uint8)
    captions = [f"{labels[row]} -> {wrong[row]} ({highest[row]:.2f})" for row in (1, 3, 2)]
    np.testing.assert_array_equal(misclassified.images(), add_captions(pixels[[1, 3, 2]], captions))
    misclassified.reset()
    assert len(misclassified.images()) == 0


def test_probabilities_that_are_not_finite_predict_no_class():
    rows = [[0.1, 0.9], [np.nan, np.nan], [np.nan, 0.5], [np.inf, 0.0], [1.0, 0.0]]
    assert predicted_classes(np.array(rows, np.float32)).tolist() == [1, -1, -1, -1, 0]
