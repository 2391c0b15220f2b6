"""What preprocessing layers are adapted to: every training example once, in order."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.training_features import training_features


def by_index(count, **more):
    def fetch(indices):
        return {"features": {"x": indices, "y": [indices]}, **more}

    return SimpleNamespace(num_examples=count, fetch=fetch)


def stream(count):
    rows = tf.data.Dataset.range(count).map(lambda i: {"features": {"x": i, "y": [i]}})
    return SimpleNamespace(num_examples=count, stream=rows.repeat)


def values(split, batch_size):
    sizes = []

    def transform(batch, draws):
        assert draws is None
        sizes.append(batch["features"]["x"].shape[0])  # static
        return batch

    dataset = SimpleNamespace(train=split, transform=transform)
    batches = [features["x"].numpy() for features in training_features(dataset, batch_size)]
    assert None not in sizes
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("make", [by_index, stream])
def test_all_examples_are_in_order(make):
    assert values(make(7), 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(make(6), 3) == [[0, 1, 2], [3, 4, 5]]
    assert values(make(2), 3) == [[0, 1]]


def test_examples_without_weight_are_left_out():
    split = by_index(3, weight=tf.constant([1.0, 0.0, 1.0]))
    split.fetch = lambda indices: {
        "features": {"x": indices},
        "weight": tf.constant(np.float32([1, 0, 1])),
    }
    assert values(split, 3) == [[0, 2]]
