"""Nodes of a task: checked, recorded, named, compared and swept like the groups."""

import pytest

from tests.support.choices import GAN_CONF as CONF
from trainer.annotations import Semantic, Structural
from trainer.cli.compose import compose
from trainer.config.instantiate import instantiate
from trainer.errors import ConfigError
from trainer.protocols import ModelNode, ScheduleNode
from trainer.runs.identity import Change, changes, leaves, run_name


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def gan(*overrides):
    return compose(["task=toy_gan", *overrides], CONF)


def problems(*overrides):
    with pytest.raises(ConfigError) as raised:
        compose(["task=toy_gan", *overrides], CONF)
    return raised.value.problems


def test_nodes_are_composed_and_their_choices_recorded():
    experiment = gan("model@task.discriminator=softmax", "task.generator.width=5")
    own = {"_target_": "tests.support.toy_gan.generator", "width": 5}
    assert experiment.task["generator"] == own
    assert experiment.task["discriminator"]["_target_"] == "trainer.models.softmax.softmax"
    nested = {key: choice for key, choice in experiment.choices.items() if "." in key}
    assert list(nested.items()) == [
        ("task.generator", "toy_generator"),
        ("task.discriminator", "softmax"),
        ("task.generator_optimizer", "adam"),
        ("task.discriminator_optimizer", "sgd"),
    ]


def test_option_of_a_node_names_the_run():
    names = {run_name(gan(*overrides)) for overrides in (
        (), ("task.generator.width=5",), ("model@task.generator=softmax",),
        ("task.generator_optimizer.learning_rate=0.01",),
    )}  # fmt: skip
    assert len(names) == 4
    assert run_name(gan("task.generator.width=16")) == run_name(gan())


def test_target_receives_nodes_and_instantiates_nothing_of_them():
    node = gan("+schedule@task.generator_schedule=cosine").task
    task = instantiate(node, "task")
    assert task.generator == ModelNode("task.generator", node["generator"])
    assert task.generator.name == "generator"
    assert isinstance(task.generator_schedule, ScheduleNode)
    assert (task.latent, task.updates) == (4, 2)
    assert instantiate(gan().task, "task").generator_schedule is None


def test_changed_node_has_the_effect_of_its_group():
    before = leaves(gan())

    def effects(*overrides):
        return {change.key: change.effect for change in changes(before, leaves(gan(*overrides)))}

    assert effects("task.generator.width=5") == {"task.generator.width": Structural()}
    assert effects("task.discriminator.dropout=0") == {"task.discriminator.dropout": Semantic()}
    rate = "task.generator_optimizer.learning_rate"
    assert effects(f"{rate}=1") == {rate: Semantic()}
    # Without momentum there are no slots.
    momentum = "task.discriminator_optimizer.momentum"
    assert effects(f"{momentum}=0.5") == {momentum: Semantic(apart=(0, None))}
    assert effects(f"{momentum}=0") == {momentum: Structural()}
    target = "task.generator_optimizer._target_"
    assert effects("optimizer@task.generator_optimizer=adamw")[target] == Structural()
    assert changes(before, leaves(gan(f"{rate}=1"))) == [Change(rate, 0.001, 1)]
