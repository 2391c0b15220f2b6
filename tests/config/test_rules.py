"""The configuration as a whole: choices, rules across keys, loops, environments, resumed runs."""

import dataclasses
import json
import re
from importlib.metadata import EntryPoint
from inspect import Parameter
from typing import cast

import pytest
import yaml

from tests.support.choices import NEEDED
from tests.support.command_line import ROOT
from tests.support.object_stores import MemoryStore
from trainer.cli.choices import first_comment, key_comments
from trainer.cli.compose import compose
from trainer.cli.overrides import rewrite
from trainer.config import addresses, loading
from trainer.config.options import signatures
from trainer.config.removed import REMOVED
from trainer.config.rules import augmented
from trainer.config.schema import GROUPS, NAMED_GROUPS, Experiment
from trainer.errors import ConfigError
from trainer.runs import identity
from trainer.store.object_store import open_store

CONF = ROOT / "conf"
CHOICES = sorted(
    (file.parent.name, file.stem) for group in GROUPS for file in (CONF / group).glob("*.yaml")
)


def node_of(group, choice):
    node = yaml.load((CONF / group / f"{choice}.yaml").read_text(), Loader=yaml.CSafeLoader)
    return node.get(choice, {}) if group in NAMED_GROUPS else node


TARGETS = [(group, choice) for group, choice in CHOICES if node_of(group, choice).get("_target_")]
# Keras' own metrics need TensorFlow to be looked at:
# tests/engine/evaluation/test_row_metrics.py does that.
READABLE = [
    (group, choice)
    for group, choice in TARGETS
    if node_of(group, choice)["_target_"].partition(".")[0] == "trainer"
]


def problems(*overrides, config_dir=None):
    with pytest.raises(ConfigError) as raised:
        compose(list(overrides), config_dir)
    return raised.value.problems


@pytest.mark.slow
def test_every_choice_composes():
    for group, choice in CHOICES:
        override = f"{group}={choice}"
        experiment = compose([override, *NEEDED.get(override, [])])
        assert experiment.choices is not None
        assert experiment.choices[group] == choice
    assert list(compose(["callbacks=[early_stopping,none]"]).callbacks) == ["early_stopping"]


@pytest.mark.parametrize(
    ("group", "choice"), [item for item in READABLE if "=".join(item) not in NEEDED]
)
def test_every_yaml_lists_options_with_defaults(group, choice):
    node = node_of(group, choice)
    listed = {
        name: [] if value in ("???", {"_target_": "???"}) else value
        for name, value in node.items()
        if name not in ("_target_", "learning_rate", "reference_batch", "tracker", "defaults")
    }
    for item in node.get("defaults", ()):
        # A group within this one: the target has no node by default, or one that it needs.
        for key in item if isinstance(item, dict) else ():
            if not key.startswith("override "):
                listed[key.partition("@")[2] or key] = [] if "@" in key else None
    expected = defaults(node["_target_"])
    if choice == "resnet50":
        expected["name"] = "ResNet50"  # of another choice's target
    if group == "dataset":
        expected.pop("augment", None)  # that of the group, passed by the worker
    assert listed == expected


def defaults(target):
    """Return the defaults of keyword-only parameters; those that have none get an empty list."""
    signature = signatures.read(target)
    assert signature is not None
    return {
        item.name: list(default)
        if isinstance(default := [] if item.default is Parameter.empty else item.default, tuple)
        else default
        for item in signature.parameters.values()
        if item.kind is Parameter.KEYWORD_ONLY
    }


EXAMPLE = ROOT / "docs" / "examples" / "own_project" / "conf"


def test_every_yaml_explains_itself_and_its_keys():
    assert key_comments("# nothing\n") == key_comments("# a list\n- a\n") == {}
    for file in [*CONF.rglob("*.yaml"), *EXAMPLE.rglob("*.yaml")]:
        text = file.read_text()
        lines = text.splitlines()
        assert first_comment(text)
        assert (lines[0] == "# @package _global_") == (file.parent.name == "experiment")
        silent = [name for name, comment in key_comments(text).items() if not comment]
        assert [name for name in silent if name.rpartition(".")[2] != "_target_"] == [], file
        # A list of defaults is no mapping: what config.yaml chooses from is explained by line.
        groups = [line for line in lines if re.match(r"  - \w+: ", line)]
        assert [line for line in groups if " # " not in line] == []


@pytest.mark.parametrize(
    ("overrides", "first", "second"),
    [
        (["train.steps=5"], "train.steps", "train.epochs"),
        (["train.epochs=5"], "train.epochs", "train.steps"),
        (["train.steps=5", "train.epochs=null"], "train.steps", "train.epochs"),
        (["batch.per_replica=5"], "batch.per_replica", "batch.global_size"),
        (["experiment=cifar10_mobilenet", "batch.global_size=5"], "batch.global_size",
         "batch.per_replica"),
        (["++train.steps=5"], "train.steps", "train.epochs"),
    ],
)  # fmt: skip
def test_key_of_pair_replaces_the_other(overrides, first, second):
    plain = loading.plain(compose(overrides))
    assert (loading.value_at(plain, first), loading.value_at(plain, second)) == (5, None)


def test_interpolation_is_resolved_and_a_nested_group_may_be_null_or_a_mapping(monkeypatch):
    monkeypatch.setenv("MY_SEED", "7")
    assert compose(["seed=${oc.env:MY_SEED}"]).seed == 7
    assert compose(["seed=3", "model.width=${seed}"]).model["width"] == 3
    assert compose(["dataset.normalize=null"]).dataset["normalize"] is None
    assert compose(["dataset.normalize={mean:[1]}"]).dataset["normalize"]["mean"] == [1]


SAVED = ["model=mobilenet", "model.alpha=0.5", "train.steps=50", "train.epochs=null", "seed=3"]


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "runs" / "cnn-digits-1"
    path.mkdir(parents=True)
    (path / "config.yaml").touch()
    saved = [*SAVED, "+experiment=x"]
    (path / "run.json").write_text(json.dumps({"overrides": saved, "config_dir": None}))
    return path


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        ([], [*SAVED, "+experiment=x"]),
        (["seed=4"], [*SAVED[:4], "+experiment=x"]),
        (["model=cnn"], [*SAVED[2:], "+experiment=x"]),
        (["train.epochs=9"], [*SAVED[:2], SAVED[4], "+experiment=x"]),
        (["experiment=null"], SAVED),
    ],
)
def test_new_overrides_replace_those_of_run(run_dir, new, kept):
    resume = f"resume={run_dir}"
    other = {"train.epochs=9": ["train.steps=null"], "experiment=null": []}
    written = [] if new == ["experiment=null"] else [*new, *other.get("".join(new), [])]
    assert rewrite([resume, *new])[0] == [*kept, resume, *written]


def text_keys(section, path=""):
    for name, kind in loading.hints_of(section).items():
        if dataclasses.is_dataclass(kind):
            yield from text_keys(cast(type, kind), f"{path}{name}.")
        elif "str" in str(kind) and name != "fault":
            yield f"{path}{name}=['']" if "list" in str(kind) else f"{path}{name}="


@pytest.mark.parametrize(
    "override",
    [
        *text_keys(Experiment),
        "dataset=tfrecord dataset.path=",
        "dataset=tfrecord dataset.path=['',a]",
        "dataset=table dataset.test_path=",
        "dataset=text_windows dataset.cache_dir=",
        "model=mobilenet model.weights=",
        "model=saved model.path=",
        "fault=kill_chief_at_50 fault.kill_chief_at_50.process=",
    ],
)
def test_empty_text_is_refused_in_one_line(override):
    with pytest.raises(ConfigError) as caught:
        compose(override.split())
    key = override.split()[-1].partition("=")[0]
    (line,) = [line for line in caught.value.problems if "needs env=" not in line]
    what = "has an empty item" if "[" in override else "is empty"
    assert line.startswith(f"{key} {what}, perhaps from an unset shell variable; give a value")


FLIP = {"_target_": "trainer.datasets.operations.augment.Augmentation", "flip": True}
DIGITS = {"_target_": "trainer.datasets.digits.digits"}
STREAM = {"_target_": "trainer.datasets.stream.stream"}
ANY = {"_target_": "tests.support.toy_datasets.poisoned", "ids": []}


def test_datasets_that_take_an_augmentation_get_it():
    assert augmented(ANY, FLIP) == {**ANY, "augment": FLIP}
    assert augmented(ANY, {**FLIP, "flip": False}) == ANY  # which may take no option
    outer = {**STREAM, "sources": {"a": DIGITS, "b": [STREAM, DIGITS]}}
    given = {**DIGITS, "augment": FLIP}
    assert augmented(outer, FLIP) == {**STREAM, "sources": {"a": given, "b": [STREAM, given]}}


CATCH = ["task=impala", "env=catch", "model=mlp", "train.steps_per_epoch=10"]


def test_environment_takes_the_place_of_the_dataset_and_names_the_run():
    experiment = compose(CATCH)
    assert (experiment.dataset, experiment.choices["dataset"]) == (None, None)
    assert experiment.buffer["max_staleness"] == 20
    assert identity.run_name(experiment).startswith("mlp-catch-")
    assert compose([]).buffer is None
    more = compose([*CATCH, "actors.count=5"])
    assert identity.run_name(more) == identity.run_name(experiment)


LOOP = ["loop._target_=tests.support.loops.call", "train.steps=8"]


def test_groups_of_the_built_in_loop_are_left_out():
    experiment = compose(LOOP)
    assert (experiment.own_loop, experiment.model) == ("tests.support.loops.call", None)
    assert experiment.callbacks == {}
    assert (experiment.choices["dataset"], experiment.choices["loop"]) == (None, "built_in")
    assert identity.run_name(experiment).startswith("tests.support.loops.call-")
    assert loading.restore(loading.plain(experiment)) == experiment


def test_continued_loop_keeps_its_strategy(tmp_path):
    before = identity.leaves(compose([*LOOP, "strategy=mirrored", "strategy.virtual_devices=2"]))
    experiment = compose([*LOOP, "strategy=multi_worker"])
    changes = identity.changes(before, identity.leaves(experiment))
    (line,) = identity.change_problems(tmp_path, changes, experiment)
    assert "was trained with another strategy, and a run of loop" in line
    longer = identity.changes(before, {**before, "train.steps": 20})
    assert identity.change_problems(tmp_path, longer, experiment) == []


@pytest.mark.parametrize("name", REMOVED)
def test_what_was_removed_is_refused_with_its_replacement(name):
    expected = f"{name} was removed; {REMOVED[name]}"
    assert problems(name if "=" in name else f"{name}=1") == (expected,)
    for override in () if "=" in name else (f"+{name}.part=1", f"++{name}=1", f"~{name}"):
        with pytest.raises(ConfigError, match="was removed; "):
            rewrite([override])


def test_store_of_another_project_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("mem", "tests.support.object_stores:MemoryStore", "steadfast.stores")
    monkeypatch.setattr(addresses, "entry_points", lambda group: [point])
    monkeypatch.setattr(addresses, "store_classes", addresses.store_classes.__wrapped__)
    monkeypatch.setattr(MemoryStore, "__init__", lambda self, bucket, path: None)
    assert addresses.problem("runs_dir", "mem://bucket/runs") is None
    assert isinstance(open_store("mem://bucket/runs"), MemoryStore)
