"""Keys of `fit` as overrides, and arguments of `model.fit`."""

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from trainer.cli.compose import compose
from trainer.errors import ConfigError
from trainer.fitting.fit import overrides_of


def test_keys_are_those_of_the_configuration() -> None:
    keys = {
        "checkpoint": {"every_steps": 50, "best": {"metric": "accuracy"}},
        "optimizer": "sgd",
        "optimizer__momentum": 0.5,
        "optimizer__groups": {"a [b]/": {"momentum": 0.0}},
        "predict__path": "it's\\",
        "model__name": "1",
        "writers": ["jsonl"],
        "jit": True,
        "train__clip_norm": None,
        "task": "keras",
        "task__class_weights": {0: np.float64(1.0), 1: np.int64(5)},
    }
    defaults = {"train.epochs": 3, "batch.global_size": 64, "model": "softmax"}
    experiment = compose([*overrides_of({**keys, "train__steps": 9}, defaults), "~model.name"])
    assert experiment.checkpoint.every_steps == 50
    assert experiment.checkpoint.best.metric == "accuracy"
    assert experiment.optimizer["groups"] == {"a [b]/": {"momentum": 0.0}}
    assert experiment.optimizer["momentum"] == 0.5
    assert experiment.predict.path == "it's\\"
    assert experiment.task["class_weights"] == {0: 1.0, 1: 5}
    assert list(experiment.writers) == ["jsonl"]
    assert experiment.jit
    assert (experiment.train.steps, experiment.train.epochs) == (9, None)
    assert experiment.batch.global_size == 64
    assert "++model.name='1'" in overrides_of(keys, {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("verbose", 2, "here leave it out; progress is printed"),
        ("validation_data", (1, 2), r"here write validation=\(x, y\)"),
        ("callbacks", [object()], "here name what does the same: callbacks='early_stopping'"),
    ],
)
def test_arguments_of_keras_name_the_key(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is an argument of model.fit; {message}"):
        overrides_of({name: value}, {})
    assert overrides_of({"callbacks": "early_stopping"}, {}) == ["callbacks=early_stopping"]


def test_objects_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^object is nothing that a configuration holds"):
        overrides_of({"seed": object()}, {})


def test_importing_fit_imports_no_tensorflow() -> None:
    code = "import sys, trainer; early = [*sys.modules]; from trainer import fit; "
    code += "print('trainer.fitting' in early, 'tensorflow' in sys.modules, fit.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False False fit\n"
    with pytest.raises(ImportError, match=re.escape("cannot import name 'fits'")):
        from trainer import fits  # type: ignore[attr-defined]  # noqa: F401
