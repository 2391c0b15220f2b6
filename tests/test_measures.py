import numpy as np
import pytest

from trainer.datasets.digits import digits
from trainer.errors import ConfigError
from trainer.measures import _class_names, blocks


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 9], [10]])
def test_blocks_do_not_depend_on_the_chunks_and_have_no_row_of_weight_zero(cuts):
    whole = {"id": np.arange(11), "weight": (np.arange(11) != 5).astype(np.float32), "probabilities": np.eye(11)}
    chunks = [dict(zip(whole, parts, strict=True)) for parts in zip(*(np.split(rows, cuts) for rows in whole.values()), strict=True)]
    found = list(blocks(chunks, 4))
    assert [block["id"].tolist() for block in found] == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10]]
    for block in found:
        np.testing.assert_array_equal(block["probabilities"], np.eye(11)[block["id"]])


def test_classes_without_names_are_numbered_and_each_has_one():
    dataset = digits()
    assert _class_names(dataset) == [str(number) for number in range(10)]
    object.__setattr__(dataset, "class_names", ["a", "b"])
    with pytest.raises(ConfigError) as caught:
        _class_names(dataset)
    assert caught.value.problems == ("the dataset has 2 class_names for 10 classes; give it one for each",)
