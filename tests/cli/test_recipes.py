"""Recipes beside choices that replace theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.choices import GAN_CONF as CONF
from trainer.cli.compose import compose
from trainer.errors import ConfigError


def composed(*overrides: str) -> Any:
    return compose(list(overrides), CONF)


def test_option_that_a_chosen_task_lacks_is_left_out() -> None:
    experiment = composed("experiment=smooth_recipe", "task=toy_gan", "~model", "~optimizer")
    assert "label_smoothing" not in experiment.task
    assert experiment.choices["task"] == "toy_gan"
    assert experiment.optimizer is None


def test_option_that_a_chosen_target_has_is_kept() -> None:
    experiment = composed("experiment=smooth_recipe", "optimizer=adam", "seed=3")
    assert experiment.optimizer["learning_rate"] == 0.05
    assert "momentum" not in experiment.optimizer
    assert experiment.task["label_smoothing"] == 0.1


def test_option_that_a_chosen_node_lacks_is_left_out() -> None:
    assert composed("experiment=toy_recipe").task["generator"]["width"] == 32
    experiment = composed("experiment=toy_recipe", "model@task.generator=softmax")
    assert experiment.task["generator"] == {"_target_": "trainer.models.softmax.softmax", "l2": 0.0}
    assert experiment.task["updates"] == 1


def test_wrong_option_of_a_recipe_or_command_line_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'task.label_smoothing'"):
        composed("experiment=smooth_recipe", "task=toy_gan", "+task.label_smoothing=0.1")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "wrong.yaml").write_text(
        "# @package _global_\ntask: {label_smothing: 0.1}\n"
    )
    with pytest.raises(ConfigError, match=r"unknown key 'task.label_smothing'"):
        compose(["experiment=wrong", "optimizer=sgd"], tmp_path)
