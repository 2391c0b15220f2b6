"""The group `augment`, and the datasets that take it."""

from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.config.rules.augmentation import augmented
from trainer.errors import ConfigError

FLIP = {"_target_": "trainer.datasets.operations.augment.Augmentation", "flip": True}
NONE = {**FLIP, "flip": False}
DIGITS = {"_target_": "trainer.datasets.digits.digits"}
STREAM = {"_target_": "trainer.datasets.stream.stream"}
ANY = {"_target_": "tests.support.toy_datasets.poisoned", "ids": []}


def problems(*overrides: str, config_dir: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        compose(list(overrides), config_dir)
    return raised.value.problems


def test_datasets_get_it_where_they_take_it() -> None:
    assert augmented(DIGITS, FLIP) == {**DIGITS, "augment": FLIP}
    assert augmented(DIGITS, NONE) == {**DIGITS, "augment": NONE}
    assert augmented(STREAM, FLIP) == STREAM
    assert augmented(DIGITS, None) == DIGITS


def test_function_of_any_options_gets_what_changes_something() -> None:
    assert augmented(ANY, FLIP) == {**ANY, "augment": FLIP}
    assert augmented(ANY, NONE) == ANY


def test_datasets_within_a_dataset_get_it() -> None:
    outer = {**STREAM, "sources": {"a": DIGITS, "b": [STREAM, DIGITS]}}
    given = {**DIGITS, "augment": FLIP}
    assert augmented(outer, FLIP) == {**STREAM, "sources": {"a": given, "b": [STREAM, given]}}


def test_dataset_that_takes_none_refuses_it() -> None:
    stream = [
        "dataset=stream",
        "dataset.train._target_=tests.support.toy_streams.train",
        "dataset.test._target_=tests.support.toy_streams.test",
        "dataset.num_classes=10",
    ]
    assert compose(stream).augment["flip"] is False
    assert problems(*stream, "augment.flip=true", "augment.crop=2") == (
        "dataset (trainer.datasets.stream.stream) takes no augmentation, but augment.flip, "
        "augment.crop is set; add augment=none",
    )


def test_old_key_is_answered_by_the_group() -> None:
    hint = "write augment=<choice> or augment.<option>=<value>, for it is a group of its own"
    assert problems("dataset.augment.crop=1") == (f"unknown key 'dataset.augment'; {hint}",)
    assert problems("+dataset.augment.crop=1") == (
        "dataset.augment is set by the group augment; write augment.<option>=<value>",
    )


def test_choices_can_be_combined() -> None:
    augment = compose(["augment=randaugment", "augment.mixup=0.2", "augment.crop=0"]).augment
    assert (augment["randaugment"], augment["mixup"], augment["crop"]) == (2, 0.2, 0)
