"""The nearest neighbors' votes, and examples that are spread over a split."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit
from trainer.engine.evaluation.embedding_evaluator import nearest_classes
from trainer.engine.evaluation.subset import SpreadExamples


def test_classes_are_those_of_most_similar_neighbors():
    angles = np.array([0.0, 0.2, 1.4, 1.5, 1.6])
    bank = np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1], [5], [2], [1], [3]]
    labels = np.array([4, 4, 0, 0, 2])
    asked = np.array([0.1, 1.45, 1.7, 0.75])
    features = np.stack([np.cos(asked), np.sin(asked)], axis=1)
    assert nearest_classes(bank, labels, features, 1).tolist() == [4, 0, 2, 4]
    # The lengths of vectors do not matter, and two neighbors outvote a nearer one.
    assert nearest_classes(bank, labels, features, 3).tolist() == [4, 0, 0, 4]
    assert nearest_classes(bank, labels, features, 100).tolist() == [4, 0, 0, 4]


@pytest.mark.parametrize(("count", "ids"), [(3, [0, 3, 6]), (10, [*range(10)]), (99, [*range(10)])])
def test_examples_are_spread_evenly(count, ids):
    split = ArraySplit(np.arange(10)[:, None], np.arange(10))
    some = SpreadExamples(split, count)
    assert (some.num_examples, some.in_memory) == (len(ids), True)
    batch = some.fetch(tf.range(some.num_examples, dtype=tf.int64))
    assert batch["label"].numpy().tolist() == ids
