"""The numbers that metrics give, and their names."""

import numpy as np
import pytest
import tensorflow as tf
import yaml
from command_line import ROOT
from toy_metrics import Margin

from trainer.cli import compose
from trainer.errors import ConfigError
from trainer.instantiation import instantiate
from trainer.metric_names import feed, rehearse, require_known, values
from trainer.metrics.per_class import PerClass


@pytest.mark.parametrize("file", sorted((ROOT / "conf" / "metrics").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_choice_makes_a_metric_that_takes_its_options(file):
    ((name, node),) = yaml.safe_load(file.read_text()).items()
    assert name == file.stem
    metric = instantiate(node, f"metrics.{name}")
    names = rehearse({name: metric}, 10, ("loss", "accuracy"))
    metric.reset_state()
    feed({name: metric}, np.arange(10), np.eye(10, dtype=np.float32))
    assert list(values(name, metric)) == names
    with pytest.raises(ConfigError, match=f"unknown key 'metrics.{name}.nonsense': "):
        instantiate({**node, "nonsense": 1}, f"metrics.{name}")


def test_a_number_has_the_metrics_name_and_numbers_have_their_own():
    metrics = {"mine": Margin(), "top_2": tf.keras.metrics.SparseTopKCategoricalAccuracy(2), "per_class": PerClass()}
    assert rehearse(metrics, 2, ()) == ["mine", "top_2", *(f"{name}{end}" for name in ("precision", "recall") for end in ("", "/0", "/1"))]
    assert values("mine", metrics["mine"]) == {"mine": 0.0}


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        ({"accuracy": Margin()}, ["metrics.accuracy gives 'accuracy', which the task gives too; call one of them otherwise"]),
        ({"x": Margin(called="step")}, ["metrics.x gives 'step', which each line of metrics.jsonl gives too; call one of them otherwise"]),
        (
            {"a": PerClass(), "b": PerClass(most_classes=0)},
            [f"metrics.b gives '{name}', which metrics.a gives too; call one of them otherwise" for name in ("precision", "recall")],
        ),
    ],
)
def test_no_two_numbers_have_one_name(metrics, lines):
    with pytest.raises(ConfigError) as caught:
        rehearse(metrics, 3, ("loss", "accuracy"))
    assert list(caught.value.problems) == lines


@pytest.mark.parametrize("metric", [tf.keras.metrics.AUC(), tf.keras.metrics.Precision(), tf.keras.metrics.F1Score()])
def test_a_metric_of_keras_that_is_not_for_classes_is_refused_in_one_line(metric):
    start = f"metrics.x ({type(metric).__name__}) must give numbers for labels of [B] and probabilities of [B, 10]: "
    with pytest.raises(ConfigError) as caught:
        rehearse({"x": metric}, 10, ())
    (line,) = caught.value.problems
    assert line.startswith(start)
    assert "\n" not in line


def test_a_mistake_in_a_users_metric_keeps_its_traceback():
    class Broken(Margin):
        def update_state(self, y_true, y_pred, sample_weight=None):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        rehearse({"x": Broken()}, 10, ())


def test_who_asks_for_a_metric_finds_it():
    asked = ["checkpoint.best.metric=top_5", "callbacks=early_stopping", "callbacks.early_stopping.metric=top_5", "sweep.metric=top_5"]
    require_known(compose(asked), ["loss", "top_5"])
    require_known(compose([]), ["loss"])
    own = compose([])
    own.callbacks = {"mine": {"_target_": "own.Callback", "metric": "cosine"}}
    require_known(own, ["loss"])
    with pytest.raises(ConfigError) as caught:
        require_known(compose([word.replace("top_5", "top5") for word in asked]), ["loss", "top_5"])
    rest = "(top5) must be a metric of the test split, which has loss, top_5; did you mean 'top_5'?"
    assert caught.value.problems == tuple(
        f"{key} {rest}" for key in ("checkpoint.best.metric", "sweep.metric", "callbacks.early_stopping.metric")
    )
