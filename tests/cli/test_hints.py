"""One line for what people type who come from elsewhere, and for what makes no sense."""

import pytest

from tests.support.choices import listed
from trainer.cli.compose import Composer
from trainer.errors import ConfigError

LINES = {
    "loop=fit": "loop=fit: no such choice; choose one of built_in; there is no fit; write the step "
    "as a task, or give loop._target_=<your function>",
    "strategy=ps": f"strategy=ps: no such choice; choose one of {listed('strategy')}; that is "
    "strategy=parameter_server here",
    "strategy=tf.distribute.MirroredStrategy": "strategy=tf.distribute.MirroredStrategy: no such "
    f"choice; choose one of {listed('strategy')}; that is strategy=mirrored here",
    "model=package.net": f"model=package.net: no such choice; choose one of {listed('model')}; "
    "a dotted path is written model._target_=package.net",
    "batch_size=32": "unknown key 'batch_size'; write batch.global_size=<examples in one step>",
    "strategy.num_workers=2": "unknown key 'strategy.num_workers'; write strategy.workers=<number>"
    ", with strategy=multi_worker or parameter_server",
    "train.steps=99999999999999999999": "train.steps (99999999999999999999) must be an integer of "
    "64 bits, at most 9223372036854775807",
    "model.width=99999999999999999999": "model.width (99999999999999999999) must be an integer of "
    "64 bits, at most 9223372036854775807",
    "eager=2": "eager (2) must be true or false",
    "watchdog.stall_secs=1e-9": "watchdog.stall_secs (1e-09) must be >= 0.1",
    "+fault.x={}": "fault.x ({}) is empty; write "
    "+fault.x={action:kill,process:chief,phase:step,at:75}",
    "dataset.validation=true": "dataset.validation (true) must be a float or a str or null",
    "dataset.validation=''": "dataset.validation is empty, perhaps from an unset shell variable; "
    "give a value, or write dataset.validation=null for none",
    "writers=[jsonl, csv, jsonl]": "writers names jsonl twice; remove one of them",
    "writers=[jsonl,jsonl]": "writers names jsonl twice; remove one of them",
    "+writers.log._target_=trainer.summaries.writers.jsonl.JsonLines": "writers.log is the same as "
    "writers.jsonl; remove one of them",
}


@pytest.fixture(scope="module")
def composer():
    return Composer(None)


@pytest.mark.parametrize("override", LINES)
def test_override_is_refused_in_one_line(composer, override):
    with pytest.raises(ConfigError) as caught:
        composer.compose([override])
    assert caught.value.problems == (LINES[override],)


def test_choice_in_conf_of_the_working_directory_is_found(composer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "model" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("_target_: trainer.models.cnn.cnn\n")
    with pytest.raises(ConfigError, match=r"conf/model/mine.yaml is one: add --config-dir=conf$"):
        composer.compose(["model=mine"])
    assert Composer("conf").compose(["model=mine"]).model == {"_target_": "trainer.models.cnn.cnn"}


def test_target_on_the_command_line_leaves_options_of_the_choice_behind(composer):
    own = ["model._target_=tests.support.toy_models.tiny"]
    node = composer.compose(own).model
    assert node.keys() == {"_target_", "dropout", "synchronized"}, "those that it has as well"
    with pytest.raises(ConfigError, match=r"^unknown key 'model\.width'"):
        composer.compose([*own, "model.width=3"])
