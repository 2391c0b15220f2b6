"""Division into splits by a hash."""

import numpy as np
import pytest

from trainer.datasets.splits.hashed_split import divide, hash_numbers, hash_texts

NUMBERS = [0.3381666012719897, 0.5665615751722809, 0.7457817572627011]
TEXTS = [0.8894159948913369, 0.791374270522379]


def test_hashes_stay_the_same_for_ever():
    # Another hash would mix the splits of every user.
    assert hash_numbers(np.arange(3)).tolist() == NUMBERS
    assert hash_texts(["", "a"]).tolist() == TEXTS


def test_division_is_ascending_and_complete():
    train, test = divide(np.array([0.5, 0.1, 0.9, 0.2]), 0.3, "rows", "a.csv")
    assert (train.tolist(), test.tolist()) == ([0, 2], [1, 3])
    with pytest.raises(ValueError, match=r"none of the 1 rows of a.csv in the train split"):
        divide(np.array([0.1]), 0.3, "rows", "a.csv")
