"""Hints that need more than one command line; the others are in wrong_commands.txt."""

import pytest

from trainer.cli.compose import compose
from trainer.errors import ConfigError


def test_choice_in_a_whole_configuration_of_the_working_directory_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "model" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("_target_: trainer.models.cnn.cnn\n")
    (tmp_path / "conf" / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"conf/model/mine.yaml is one: add --config-dir=conf;"):
        compose(["model=mine"])


def test_target_on_the_command_line_leaves_options_of_the_choice_behind():
    own = ["model._target_=tests.support.toy_models.tiny"]
    node = compose(own).model
    assert node.keys() == {"_target_", "dropout", "synchronized"}, "those that it has as well"
    with pytest.raises(ConfigError, match=r"^unknown key 'model\.width'"):
        compose([*own, "model.width=3"])


@pytest.mark.parametrize("target", ["null", "5", "${name}"])
def test_target_that_is_no_path_is_refused(target):
    with pytest.raises(ConfigError, match=r"^model \(.*\) must be a mapping with a _target_"):
        compose([f"model._target_={target}"])
