"""Which direction of a metric is better: declared once, by the class that returns it."""

import pytest

from trainer.cli.compose import compose
from trainer.config.directions import Directions, declared, of_targets, resolved
from trainer.config.schema import Sweep

OWN = """
from abc import ABC

class Base(ABC):
    direction = {"glossary_accuracy": "max", "speed": "min"}

class Declared(Base):
    primary_metric = "glossary_accuracy"
    metrics = ("loss", "glossary_accuracy")

class Undeclared:
    metrics = ("loss", "score")

class Unreadable(Undeclared, some_factory()):
    metrics = ("loss", "score")

class Extended(Base):
    direction = {**Base.direction, "score": "max"}

class OfObject(Base):
    def __init__(self):
        self.direction = {"score": "max"}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_directions.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "metric", "mode"),
    [
        (["experiment=diabetes", "metrics=regression"], "rmse", "min"),
        (["experiment=diabetes", "metrics=regression"], "r2", "max"),
        (["task=language_model"], "perplexity", "min"),
        (["task=segmentation"], "iou/3", "max"),
        (["metrics=[per_class,calibration]"], "recall/cat", "max"),
        (["+metrics.mse._target_=tensorflow.keras.metrics.MeanSquaredError"], "mse", "min"),
        (["+metrics.auc._target_=tensorflow.keras.metrics.AUC"], "auc", "max"),
        ([], "nonsense", None),
    ],
)
def test_direction_is_read_from_the_source(overrides, metric, mode):
    directions = declared(compose(overrides))
    assert (directions.is_complete, directions.mode(metric)) == (True, mode)
    assert directions.mode(metric, "max") == "max"


@pytest.mark.usefixtures("own")
def test_class_inherits_a_declaration_and_a_name_tells_nothing():
    directions = of_targets("own_directions.Declared", {})
    assert directions.mode("glossary_accuracy") == "max"
    assert (directions.primary, directions.is_complete) == ("glossary_accuracy", True)
    assert of_targets("own_directions.Undeclared", {}) == Directions()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["Unreadable", "Extended", "OfObject"])
def test_declaration_that_only_an_import_can_tell_is_left_to_the_worker(name):
    assert not of_targets(f"own_directions.{name}", {}).is_complete


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        (["accuracy", "loss"], "auto", (["accuracy", "loss"], ["max", "min"])),
        (["accuracy", "loss"], ["auto", "max"], (["accuracy", "loss"], ["max", "max"])),
        (["accuracy", "loss"], "min", (["accuracy", "loss"], ["min", "min"])),
        (["loss"], ["auto"], ("loss", "min")),
        (None, ["auto"], ("accuracy", "max")),
    ],
)
def test_sweep_has_a_mode_for_each_of_several_metrics(metric, mode, expected):
    sweep, problem = resolved(Sweep(metric=metric, mode=mode), compose([]))
    assert problem is None
    assert (sweep.metric, sweep.mode) == expected


def test_sweep_takes_the_tasks_primary_metric():
    chosen = {}
    for name in ("digits", "diabetes", "impala_catch", "char_lm"):
        experiment = compose([f"experiment={name}"] if name != "digits" else [])
        sweep, problem = resolved(experiment.sweep, experiment)
        assert problem is None
        chosen[name] = sweep.metric, sweep.mode
    assert chosen == {
        "digits": ("accuracy", "max"),
        "diabetes": ("loss", "min"),
        "impala_catch": ("return", "max"),
        "char_lm": ("accuracy", "max"),
    }
    experiment = compose(["task=gan"])  # without gan_quality nothing measures examples
    assert resolved(experiment.sweep, experiment)[0].metric == "loss"
