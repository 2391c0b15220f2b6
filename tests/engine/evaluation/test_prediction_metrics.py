"""The values of metrics, and their names."""

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
from trainer.engine.evaluation.prediction_metrics import (
    metric_values,
    require_evaluated,
    update_metrics,
    validate_metrics,
)
from trainer.errors import ConfigError
from trainer.metrics.per_class import PerClass
from trainer.protocols import label_kind_of

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
    name, options = "SparseTopKCategoricalAccuracy", {"k": 2}
    node = {"_target_": f"keras.metrics.{name}", **options}
    own = {"metric": instantiate(node, "metrics.metric")}
    twin = {"metric": getattr(tf.keras.metrics, name)(**options)}
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
        ({"x": Margin(called="step")}, "metrics.x gives 'step', which each line of metrics.jsonl"),
        ({"a": PerClass(), "b": PerClass()}, "metrics.b gives 'precision', which metrics.a gives"),
    ],
)
def test_duplicate_names_are_refused(metrics, problem):
    with pytest.raises(ConfigError) as caught:
        validate_metrics(metrics, 3, ("loss", "accuracy"))
    assert caught.value.problems[0].startswith(problem)


@pytest.mark.parametrize("metric", [tf.keras.metrics.AUC(), keras.metrics.F1Score()])
def test_keras_metric_not_for_classes_is_refused_in_one_line(metric):
    start = (
        f"metrics.x ({type(metric).__name__}) must give numbers "
        "for labels of [B] and probabilities of [B, 10]: "
    )
    with pytest.raises(ConfigError) as caught:
        validate_metrics({"x": metric}, 10, ())
    (line,) = caught.value.problems
    assert line.startswith(start)
    assert "\n" not in line


def test_error_in_user_metric_keeps_its_traceback():
    class Broken(Margin):
        def update_state(self, y_true, y_pred, sample_weight=None):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        validate_metrics({"x": Broken()}, 10, ())


def test_metric_references_must_be_evaluated():
    overrides = [
        "checkpoint.best.metric=top_5",
        "callbacks=early_stopping",
        "callbacks.early_stopping.metric=top_5",
        "sweep.metric=top_5",
    ]
    declared = Directions({"loss": "min", "top_5": "max"})
    experiment = compose(["metrics=top_5", *overrides])
    require_evaluated(experiment, ["loss", "top_5"], declared)
    with pytest.raises(ConfigError, match=r"best\.metric \(top_5\) declares no direction"):
        require_evaluated(experiment, ["loss", "top_5"], Directions())
    require_evaluated(compose([]), ["loss"], declared)
    experiment.checkpoint.best.metric = experiment.sweep.metric = "top5"
    experiment.callbacks["early_stopping"]["metric"] = "top5"
    with pytest.raises(ConfigError) as caught:
        require_evaluated(experiment, ["loss", "top_5"], declared)
    rest = "(top5) must be a metric of the evaluation, which has loss, top_5; did you mean 'top_5'?"
    assert caught.value.problems == tuple(
        f"{key} {rest}"
        for key in ("checkpoint.best.metric", "sweep.metric", "callbacks.early_stopping.metric")
    )

    experiment = compose([])
    experiment.callbacks = {"mine": {"_target_": "own.Callback", "metric": "cosine"}}
    require_evaluated(experiment, ["loss"], declared)
