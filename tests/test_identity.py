"""The same command finds the same run; whatever changes a number of the training finds another."""

import copy
import re

import pytest

from trainer import config
from trainer.cli import compose
from trainer.identity import FREE, RESUMABLE, changes, flatten, run_name

DEFAULT = compose([])
LEAVES = dict(flatten(config.plain(DEFAULT)))


def is_free(key):
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def changed(key):
    """Gives the default experiment with another value at one key."""
    container = copy.deepcopy(config.plain(DEFAULT))
    *parents, last = key.split(".")
    node = container
    for parent in parents:
        node = node[parent]
    value = node[last]
    if isinstance(value, bool):
        node[last] = not value
    elif isinstance(value, int | float):
        node[last] = value + 1
    elif isinstance(value, list):
        node[last] = value[1:] or ["more"]
    elif isinstance(value, dict):
        node[last] = {"more": 1}
    elif value is None and isinstance(getattr(getattr(DEFAULT, key.split(".")[0]), last, None), type(None)):
        node[last] = "4" if key in ("name", "init_from", "checkpoint.best.metric") else 4
    else:
        node[last] = f"{value}x"
    return config.restore(container)


def test_the_name_is_model_dataset_and_eight_hex_digits():
    assert re.fullmatch(r"cnn-digits-[0-9a-f]{8}", run_name(DEFAULT))
    assert re.fullmatch(r"softmax-synthetic-[0-9a-f]{8}", run_name(compose(["model=softmax", "dataset=synthetic"])))


def test_a_given_name_replaces_model_and_dataset_and_nothing_else():
    assert run_name(compose(["name=mine"])) == run_name(DEFAULT).replace("cnn-digits", "mine")


def test_the_same_command_gives_the_same_name():
    overrides = ["model=mobilenet", "optimizer.learning_rate=0.01", "seed=3"]
    assert run_name(compose(overrides)) == run_name(compose(overrides)) == run_name(compose(overrides[::-1]))


def test_a_default_that_is_spelled_out_is_the_same_experiment():
    assert run_name(compose(["seed=0", "model=cnn", "batch.global_size=128"])) == run_name(DEFAULT)


def test_a_restored_configuration_has_the_same_name():
    assert run_name(config.restore(config.plain(DEFAULT))) == run_name(DEFAULT)


def test_there_are_keys_of_both_kinds():
    assert {key for key in LEAVES if is_free(key)} >= {"name", "runs_dir", "mode", "resume", "checkpoint.keep", "train.steps_per_loop"}
    assert {key for key in LEAVES if not is_free(key)} >= {"seed", "precision", "train.epochs", "model._target_", "strategy._target_"}


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_every_key_but_the_free_ones_makes_another_run(key):
    digest, other = run_name(DEFAULT)[-8:], run_name(changed(key))[-8:]
    assert (digest == other) == is_free(key)


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_changes_names_the_key_and_both_values_unless_it_is_allowed(key):
    now = changed(key)
    value = dict(flatten(config.plain(now))).get(key)
    found = changes(DEFAULT, now, allowed=())
    assert (key, LEAVES[key], value) in found
    assert all(name == key or name.startswith(f"{key}.") for name, _, _ in found)
    assert changes(DEFAULT, now, allowed=(key,)) == []
    assert (changes(DEFAULT, now) == []) == is_free(key)


def test_changes_of_another_model_are_listed_key_by_key():
    found = changes(compose(["model=softmax"]), compose(["model=softmax", "model.l2=0.1", "seed=4"]))
    assert found == [("seed", 0, 4), ("model.l2", 0.0, 0.1)]


def test_a_key_that_only_one_of_the_two_has_is_a_change():
    found = dict((key, (before, now)) for key, before, now in changes(compose(["model=cnn"]), compose(["model=softmax"])))
    assert found["model._target_"] == ("trainer.models.cnn.cnn", "trainer.models.softmax.softmax")
    assert found["model.width"] == (LEAVES["model.width"], None)


def test_what_a_resumed_run_may_change():
    now = compose(["train.steps=99", "strategy=mirrored", "strategy.virtual_devices=2"])
    assert changes(DEFAULT, now) != []
    assert changes(DEFAULT, now, FREE + RESUMABLE) == []
    assert changes(DEFAULT, compose(["batch.global_size=64"]), FREE + RESUMABLE) == [("batch.global_size", 128, 64)]


def test_flatten_keeps_an_empty_mapping_as_a_leaf():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}
