"""Every YAML file of the groups `dataset` and `model` lists its target's options and defaults."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.datasets.operations.augment import Augmentation

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted([*(CONF / "dataset").rglob("*.yaml"), *(CONF / "model").glob("*.yaml")])
AUGMENTATIONS = sorted((CONF / "augment").glob("*.yaml"))
SHARED = {
    "dataset/normalize/default": "trainer.datasets.images.normalization.Normalization",
    "dataset/fields/default": "trainer.datasets.records.fields.Fields",
    "model/resnet50": "trainer.models.keras_application.keras_application",
}
"""Groups within the datasets and choices of another's target, and their targets."""
PRESETS = {"model/resnet50": {"name": "ResNet50"}}
"""What choices of another's target set."""
OWN = ("arrays", "stream", "indexed")
"""Datasets of a user's own functions and objects, which have no default."""


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
        presets = {name.partition("/")[2] for name in PRESETS if name.startswith(f"{group}/")}
        assert {file.stem for file in (CONF / group).glob("*.yaml")} - presets == functions


@pytest.mark.parametrize("file", [file for file in FILES if file.stem not in OWN], ids=name_of)
def test_keys_and_defaults_equal_those_of_the_target(file: Path) -> None:
    target, values = load(file)
    default_target = f"trainer.{file.parent.name}s.{file.stem}.{file.stem}"
    assert target == SHARED.get(name_of(file), default_target)
    parameters = options(target)
    if "augment" in parameters:  # the group's, passed by the worker
        assert parameters.pop("augment").default is None
    _, *groups = values.pop("defaults", ["_self_"])
    for name, choice in ((*group.items(),)[0] for group in groups):
        assert (parameters.pop(name).default, choice) == (None, "default")
    assert all(
        parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is not parameter.empty
        for parameter in parameters.values()
    )
    defaults = {
        key: "???" if parameter.default is parameter.empty else parameter.default
        for key, parameter in parameters.items()
    } | PRESETS.get(name_of(file), {})
    assert values == defaults
    assert {key: type(value) for key, value in values.items()} == {
        key: type(value) for key, value in defaults.items()
    }
    assert list(values) == list(parameters)


@pytest.mark.parametrize("file", AUGMENTATIONS, ids=name_of)
def test_augmentations_build_on_none_and_can_be_made(file: Path) -> None:
    values = yaml.safe_load(file.read_text())
    base = yaml.safe_load((CONF / "augment" / "none.yaml").read_text())
    target = base.pop("_target_")
    defaults = {key: option.default for key, option in options(target).items()}
    assert (base, list(base)) == (defaults, list(defaults))
    if file.stem != "none":
        assert values.pop("defaults") == ["none", "_self_"]
        assert set(values) <= set(base)
        assert Augmentation(**values).num_draws > 0


@pytest.mark.parametrize("file", [*FILES, *AUGMENTATIONS], ids=name_of)
def test_every_line_has_a_comment(file: Path) -> None:
    first, *rest = file.read_text().splitlines()
    assert first.startswith("# ")
    uncommented = [line for line in rest if "  # " not in line]
    assert [
        line for line in uncommented if line not in ("defaults:", "  - _self_", "  - none")
    ] == [line for line in rest if line.startswith("_target_: ")]
