"""The text of a grammar: always the same."""

from tests.support.dataset_contract import check_dataset
from trainer.datasets.sentences import sentences


def test_sentences_keep_the_contract() -> None:
    check_dataset(sentences(characters=5000, length=16))
