"""The group `augment`, and the datasets that take it."""

from trainer.cli.compose import compose
from trainer.config.rules import augmented

FLIP = {"_target_": "trainer.datasets.operations.augment.Augmentation", "flip": True}
NONE = {**FLIP, "flip": False}
DIGITS = {"_target_": "trainer.datasets.digits.digits"}
STREAM = {"_target_": "trainer.datasets.stream.stream"}
ANY = {"_target_": "tests.support.toy_datasets.poisoned", "ids": []}


def test_function_of_any_options_gets_what_changes_something() -> None:
    assert augmented(ANY, FLIP) == {**ANY, "augment": FLIP}
    assert augmented(ANY, NONE) == ANY


def test_datasets_within_a_dataset_get_it() -> None:
    outer = {**STREAM, "sources": {"a": DIGITS, "b": [STREAM, DIGITS]}}
    given = {**DIGITS, "augment": FLIP}
    assert augmented(outer, FLIP) == {**STREAM, "sources": {"a": given, "b": [STREAM, given]}}


def test_choices_can_be_combined() -> None:
    augment = compose(["augment=randaugment", "augment.mixup=0.2", "augment.crop=0"]).augment
    assert (augment["randaugment"], augment["mixup"], augment["crop"]) == (2, 0.2, 0)
