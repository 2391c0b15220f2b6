"""The text of a grammar: always the same."""

import pytest

from tests.support.dataset_contract import check_dataset
from trainer.datasets import sentences as module
from trainer.datasets.sentences import make_text, parse_rules, sentences


def test_sentences_keep_the_contract() -> None:
    check_dataset(sentences(characters=5000, length=16))


def test_longer_text_begins_with_a_shorter_one() -> None:
    text = make_text(3000)
    assert make_text(9000).startswith(text)
    assert text.startswith("Clara said that the dog is old.\nAt night, Clara follows the ")
    assert text.endswith("\n")
    assert 3000 <= len(text) < 3300


def test_frequent_derivations_are_as_likely_as_the_grammar_says() -> None:
    lines = make_text(200_000).splitlines()
    share = sum(", but " in line for line in lines) / len(lines)
    weights = [p for p, parts in parse_rules(module._GRAMMAR)["line"] if ", but " in parts]
    assert share == pytest.approx(weights[0], abs=0.03)
