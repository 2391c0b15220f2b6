"""Composing many experiments is composing each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.composition import Composer, compose
from trainer.errors import ConfigError

COMPOSER = Composer(None)
"""One for all, so that what it remembers is put to the test."""


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "model=softmax train.steps=5 optimizer=sgd optimizer.momentum=0.5",
        "train.steps=5 model=softmax optimizer=sgd",
        "experiment=mnist_tutorial seed=3",
        "callbacks=[early_stopping] callbacks.early_stopping.patience=3",
        "+fault.mine={what:nan,at:3} ++fault.mine.at=4 seed=3",
        "~callbacks strategy={_target_:trainer.strategies.one_device.OneDevice}",
    ],
)
def test_it_is_the_same_experiment(overrides: str) -> None:
    assert COMPOSER.compose(overrides.split()) == compose(overrides.split())


@pytest.mark.parametrize(
    "overrides",
    [
        "model=cn",
        "seed=x",
        "model.widht=3",
        "optimizer=sgd optimizer.learning_rte=1",
        "+foo=1",
        "+seed=1",
        "train.steps=0 batch.global_size=-1",
        "seed=[",
        "++model=cnn",
        "resume=nowhere",
    ],
)
def test_it_is_the_same_mistake(overrides: str) -> None:
    told = []
    for method in (compose, COMPOSER.compose):
        with pytest.raises(ConfigError) as raised:
            method(overrides.split())
        told.append(raised.value.problems)
    assert told[0] == told[1]


def test_what_is_made_of_one_is_not_in_the_other() -> None:
    first = COMPOSER.compose(["model.width=5"])
    first.model["width"] = 7
    assert COMPOSER.compose(["seed=1"]).model["width"] not in (5, 7)


def test_a_recipe_brings_what_is_varied_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "rates.yaml").write_text(
        """# @package _global_
# rates of two models
defaults:
  - override /search: random
hydra:
  sweeper:
    params:
      optimizer.learning_rate: tag(log,interval(1e-4,1e-1))
      model: cnn,softmax
"""
    )
    composer = Composer(str(tmp_path))
    parsed = {item.get_key_element(): item for item in composer.parse(["experiment=rates", "model=mobilenet", "seed=1,2"])}
    assert {key for key, item in parsed.items() if item.is_sweep_override()} == {"optimizer.learning_rate", "seed"}
    assert parsed["model"].value() == "mobilenet"
    assert composer.compose(["experiment=rates", "optimizer.learning_rate=0.01"]).search.method == "random"

    with pytest.raises(
        ConfigError, match=r"^experiment \(rates\) brings what is varied itself \(optimizer.learning_rate, model\); choose it alone$"
    ):
        composer.parse(["experiment=mnist_tutorial,rates"])


def test_recipes_can_be_varied_themselves() -> None:
    (recipes,) = COMPOSER.parse(["experiment=mnist_tutorial,cifar10_mobilenet"])
    assert list(recipes.sweep_string_iterator()) == ["mnist_tutorial", "cifar10_mobilenet"]
