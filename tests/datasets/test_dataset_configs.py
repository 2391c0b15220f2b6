"""Every YAML file of the groups `dataset` and `model` lists its target's options and defaults."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted([*(CONF / "dataset").rglob("*.yaml"), *(CONF / "model").glob("*.yaml")])
SHARED = {
    "dataset/augment/default": "trainer.datasets.augment.Augmentation",
    "dataset/normalise/default": "trainer.datasets.normalise.Normalisation",
}
"""Groups within the datasets, and their targets."""
DEFAULTS = ["_self_", {"augment": "default"}, {"normalise": "default"}]
"""What every image dataset builds on."""


def name_of(file: Path) -> str:
    return str(file.relative_to(CONF).with_suffix(""))


def options(target: str) -> dict[str, inspect.Parameter]:
    module, _, name = target.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    return {
        key: value
        for key, value in parameters.items()
        if key not in ("input_shape", "num_classes") or value.kind is value.KEYWORD_ONLY
    }


def load(file: Path) -> tuple[str, dict[str, Any]]:
    values = yaml.safe_load(file.read_text())
    return values.pop("_target_"), values


def test_every_dataset_and_model_has_a_yaml_file() -> None:
    names = {"dataset": "datasets", "model": "models"}
    for group, folder in names.items():
        functions = {
            path.stem
            for path in (CONF.parent / folder).glob("*.py")
            if f"\ndef {path.stem}(" in path.read_text()
        }
        assert {file.stem for file in (CONF / group).glob("*.yaml")} == functions


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_keys_and_defaults_equal_those_of_the_target(file: Path) -> None:
    target, values = load(file)
    default_target = f"trainer.{file.parent.name}s.{file.stem}.{file.stem}"
    assert target == SHARED.get(name_of(file), default_target)
    parameters = options(target)
    if values.pop("defaults", None) == DEFAULTS:
        assert [parameters.pop(name).default for name in ("augment", "normalise")] == [None, None]
    assert all(
        parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is not parameter.empty
        for parameter in parameters.values()
    )
    defaults = {key: parameter.default for key, parameter in parameters.items()}
    assert values == defaults
    assert {key: type(value) for key, value in values.items()} == {
        key: type(value) for key, value in defaults.items()
    }
    assert list(values) == list(parameters)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_line_has_a_comment(file: Path) -> None:
    first, *rest = file.read_text().splitlines()
    assert first.startswith("# ")
    uncommented = [line for line in rest if "  # " not in line]
    assert [line for line in uncommented if line not in ("defaults:", "  - _self_")] == [
        line for line in rest if line.startswith("_target_: ")
    ]
