"""The text in the public domain: whole, and as windows."""

from pathlib import Path

from tests.support.dataset_contract import check_dataset
from trainer.datasets import genesis as module
from trainer.datasets.genesis import genesis


def test_genesis_keeps_the_contract() -> None:
    check_dataset(genesis(length=16))


def test_text_is_whole() -> None:
    text = Path(str(module.__file__)).with_name("genesis.txt").read_text("ascii")
    assert text.startswith("In the beginning God created the heaven and the earth.\n")
    assert text.endswith("and he was put in a coffin in Egypt.\n")
    assert text.count("\n") == 1533
    assert len(text) == 196818
    dataset = genesis(length=100, test_fraction=0.2)
    # The last token of a split is a label alone.
    assert dataset.train.num_examples == (157454 - 1) // 100
    assert dataset.test.num_examples == (39364 - 1) // 100
