"""Blocks of predictions, and the names of classes."""

import numpy as np
import pytest

from trainer.datasets.digits import digits
from trainer.engine.evaluation.evaluator import blocks
from trainer.engine.evaluation.inference import class_names_of
from trainer.errors import ConfigError


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 9], [10]])
def test_blocks_do_not_depend_on_chunks_and_omit_rows_of_weight_zero(cuts):
    whole = {
        "id": np.arange(11),
        "weight": (np.arange(11) != 5).astype(np.float32),
        "probabilities": np.eye(11),
    }
    chunks = [
        dict(zip(whole, parts, strict=True))
        for parts in zip(*(np.split(rows, cuts) for rows in whole.values()), strict=True)
    ]
    result = list(blocks(chunks, 4))
    assert [block["id"].tolist() for block in result] == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10]]
    for block in result:
        np.testing.assert_array_equal(block["probabilities"], np.eye(11)[block["id"]])


def test_class_names_default_to_numbers_and_must_be_complete():
    dataset = digits()
    assert class_names_of(dataset) == [str(number) for number in range(10)]
    object.__setattr__(dataset, "class_names", ["a", "b"])
    with pytest.raises(ConfigError) as caught:
        class_names_of(dataset)
    assert caught.value.problems == (
        "the dataset has 2 class_names for 10 classes; give it one for each",
    )
