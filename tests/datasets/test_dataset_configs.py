"""Every YAML of the groups `dataset` and `model` states exactly the options of its target, with the target's defaults."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted([*(CONF / "dataset").glob("*.yaml"), *(CONF / "model").glob("*.yaml")])


def options(target: str) -> dict[str, inspect.Parameter]:
    module, _, name = target.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    return {
        key: value for key, value in parameters.items() if key not in ("input_shape", "num_classes") or value.kind is value.KEYWORD_ONLY
    }


def load(file: Path) -> tuple[str, dict[str, Any]]:
    values = yaml.safe_load(file.read_text())
    return values.pop("_target_"), values


def test_each_module_with_a_function_of_its_name_has_a_yaml() -> None:
    names = {"dataset": "datasets", "model": "models"}
    for group, folder in names.items():
        functions = {path.stem for path in (CONF.parent / folder).glob("*.py") if f"\ndef {path.stem}(" in path.read_text()}
        assert {file.stem for file in FILES if file.parent.name == group} == functions


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_keys_and_defaults_are_those_of_the_target(file: Path) -> None:
    target, values = load(file)
    assert target == f"trainer.{file.parent.name}s.{file.stem}.{file.stem}"
    parameters = options(target)
    assert all(
        parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is not parameter.empty for parameter in parameters.values()
    )
    defaults = {key: parameter.default for key, parameter in parameters.items()}
    assert values == defaults
    assert {key: type(value) for key, value in values.items()} == {key: type(value) for key, value in defaults.items()}
    assert list(values) == list(parameters)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_line_is_explained(file: Path) -> None:
    first, second, *rest = file.read_text().splitlines()
    assert first.startswith("# ")
    assert second.startswith("_target_: ")
    assert all("  # " in line for line in rest)
