"""The text of a grammar: always the same, and its entropy."""

import math
from collections import Counter

import pytest

from tests.support.dataset_contract import check_dataset
from trainer.datasets import sentences as module
from trainer.datasets.sentences import entropy, make_text, parse_rules, sentences


def test_sentences_keep_the_contract() -> None:
    check_dataset(sentences(characters=5000, length=16))


def test_longer_text_begins_with_a_shorter_one() -> None:
    text = make_text(3000)
    assert make_text(9000).startswith(text)
    assert text.startswith("Clara said that the dog is old.\nAt night, Clara follows the ")
    assert text.endswith("\n")
    assert 3000 <= len(text) < 3300


def test_entropy_is_that_of_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRAMMAR", "line: 1 a<b>^ | 3 c^\nb: 1 xx | 1 yy")
    nats = -0.25 * math.log(0.25) - 0.75 * math.log(0.75) + 0.25 * math.log(2)
    assert entropy() == pytest.approx(nats / (0.25 * 4 + 0.75 * 2))
    counts = Counter(make_text(20_000).splitlines())
    total = counts.total()
    assert counts.keys() == {"axx", "ayy", "c"}
    assert counts["c"] / total == pytest.approx(0.75, abs=0.02)


def test_frequent_derivations_are_as_likely_as_the_grammar_says() -> None:
    lines = make_text(200_000).splitlines()
    share = sum(", but " in line for line in lines) / len(lines)
    weights = [p for p, parts in parse_rules(module._GRAMMAR)["line"] if ", but " in parts]
    assert share == pytest.approx(weights[0], abs=0.03)
