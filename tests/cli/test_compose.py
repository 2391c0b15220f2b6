"""Composing: as Hydra does, from what is kept of it."""

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from tests.support.choices import GAN_CONF
from trainer.cli.compose import (
    Composition,
    add_engine_keys,
    compose,
    compose_config,
    config_loader,
    parse_sweep,
)
from trainer.cli.overrides import rewrite
from trainer.errors import ConfigError


def composed_by_hydra(overrides):
    rewritten, config_dir = rewrite(overrides.split())
    with config_loader(config_dir) as loader:
        config = loader.load_configuration("config", rewritten, RunMode.RUN)
    OmegaConf.set_struct(config, False)
    add_engine_keys(config)
    section = config.pop("hydra")
    section.runtime.output_dir = section.runtime.cwd
    words = [item for item in rewritten if not item.startswith("hydra.")]
    return Composition(config, OmegaConf.create({"hydra": section}), words, ())


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "model=softmax optimizer=sgd optimizer.momentum=0.5 hydra.verbose=true seed=${train.steps}",
        "experiment=mnist_tutorial seed=3",
        "callbacks=[early_stopping] ~optimizer.learning_rate model={width:3}",
        "+fault.mine={action:freeze,at:3} ++fault.mine.at=4 seed=3",
        "~callbacks strategy={_target_:trainer.strategies.one_device.OneDevice}",
    ],
)
def test_composed_configuration_is_that_of_hydra(overrides):
    rewritten, config_dir = rewrite(overrides.split())
    expected = composed_by_hydra(overrides)
    for _ in range(2):  # the second time from what is kept
        composed = compose_config(rewritten, config_dir)
        assert composed.container() == expected.container()
        assert (composed.choices, composed.overrides) == (expected.choices, expected.overrides)


def test_edited_choice_shows_in_next_composition(tmp_path):
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "mine.yaml"
    for width in (3, 40):
        file.write_text(f"_target_: trainer.models.cnn.cnn\nwidth: {width}\n")
        assert compose(["model=mine"], tmp_path).model["width"] == width


def test_composed_experiments_share_no_state():
    first = compose(["model.width=5"])
    first.model["width"] = 7
    assert compose(["seed=1"]).model["width"] not in (5, 7)


def test_recipe_brings_sweep_and_command_line_wins(tmp_path):
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
    parsed = {
        item.get_key_element(): item
        for item in parse_sweep(["experiment=rates", "model=mobilenet", "seed=1,2"], str(tmp_path))
    }
    assert {key for key, item in parsed.items() if item.is_sweep_override()} == {
        "optimizer.learning_rate",
        "seed",
    }
    assert parsed["model"].value() == "mobilenet"
    search = compose(["experiment=rates", "optimizer.learning_rate=0.01"], tmp_path).search
    assert search["_target_"].endswith(".RandomSearch")

    with pytest.raises(ConfigError, match=r"^experiment \(rates\) brings .*; choose it alone$"):
        parse_sweep(["experiment=mnist_tutorial,rates"], str(tmp_path))
    (recipes,) = parse_sweep(["experiment=mnist_tutorial,cifar10_mobilenet"], None)
    assert list(recipes.sweep_string_iterator()) == ["mnist_tutorial", "cifar10_mobilenet"]


def test_target_on_the_command_line_leaves_options_of_the_choice_behind():
    own = ["model._target_=tests.support.toy_models.tiny"]
    node = compose(own).model
    assert node.keys() == {"_target_", "dropout", "synchronized"}, "those that it has as well"
    with pytest.raises(ConfigError, match=r"^unknown key 'model\.width'"):
        compose([*own, "model.width=3"])


def with_gans(*overrides):
    return compose(list(overrides), GAN_CONF)


def test_option_that_a_chosen_task_lacks_is_left_out():
    experiment = with_gans("experiment=smooth_recipe", "task=toy_gan", "~model", "~optimizer")
    assert "label_smoothing" not in experiment.task
    assert experiment.choices["task"] == "toy_gan"
    assert experiment.optimizer is None


def test_wrong_option_of_a_recipe_or_command_line_is_still_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'task.label_smoothing'"):
        with_gans("experiment=smooth_recipe", "task=toy_gan", "+task.label_smoothing=0.1")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "wrong.yaml").write_text(
        "# @package _global_\ntask: {label_smothing: 0.1}\n"
    )
    with pytest.raises(ConfigError, match=r"unknown key 'task.label_smothing'"):
        compose(["experiment=wrong", "optimizer=sgd"], tmp_path)
