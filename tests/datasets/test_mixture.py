"""Mixtures: each source with its own preprocessing, and what does not fit together."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.mixture import mixture
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArrayDataset, ArraySplit
from trainer.engine.graph.input.feed import sample_order

RANDOM = np.random.RandomState(0)


class Weighted(ArraySplit):
    def fetch(self, indices):
        batch = super().fetch(indices)
        return {**batch, "weight": tf.cast(indices % 2, tf.float32), "other": indices}


def images(count, kind=ArraySplit, **options):
    pixels = RANDOM.randint(0, 256, (count, 6, 6, 1), np.uint8)
    split = kind(pixels, np.arange(count) % 3)
    return ImageDataset(train=split, test=split, image_shape=(6, 6, 1), num_classes=3, **options)


def sources():
    return {
        "a": images(5, augment=Augmentation(flip=True, crop=2)),
        "b": images(8, Weighted, normalize=Normalization(mean=[0.5])),
    }


def test_examples_come_with_their_sources_preprocessing_and_draws():
    parts = sources()
    mixed = mixture(sources=parts)
    assert (mixed.num_draws, mixed.input_shape, mixed.num_classes) == (3, (6, 6, 1), 3)
    indices = tf.constant([12, 0, 4, 5, 0], tf.int64)
    draws = tf.constant(RANDOM.uniform(size=(5, 3)), tf.float32)
    fetch = tf.function(mixed.train.fetch, autograph=False)
    batch = fetch(indices, draws)
    a = parts["a"].transform(
        parts["a"].train.fetch(tf.constant([0, 4, 0], tf.int64)), tf.gather(draws, [1, 2, 4])
    )
    b = parts["b"].transform(parts["b"].train.fetch(tf.constant([7, 0], tf.int64)), None)
    for name in ("features", "label"):
        np.testing.assert_allclose(tf.gather(batch[name], [1, 2, 4]), a[name], atol=1e-6)
        np.testing.assert_allclose(tf.gather(batch[name], [0, 3]), b[name], atol=1e-6)
    assert batch["weight"].numpy().tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert set(batch) == {"features", "label", "weight"}
    for part in (indices[:1], indices[1:3]):  # of one source alone
        alone = fetch(part, draws[: len(part)])
        assert alone["features"].shape == (len(part), 6, 6, 1)


def test_mixture_keeps_the_contract_of_datasets():
    # Without a division: one by a constant is rounded otherwise where the graph is rewritten.
    check_dataset(mixture(sources={"a": images(5, max_value=1.0), "b": images(8, max_value=1.0)}))


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (None, [5, 8]),
        ({"a": 0.1, "b": 0.3}, [1, 3]),
        ({"b": 2, "a": 0.5}, [1, 4]),
        ({"a": 3e-9, "b": 1}, [1, 2**20 - 1]),
    ],
)
def test_weights_are_whole_shares(weights, shares):
    mixed = mixture(sources=sources(), weights=weights)
    assert [part.share for part in mixed.train.parts] == pytest.approx(shares, abs=1)
    assert [part.size for part in mixed.train.parts] == [5, 8]


def test_each_example_of_more_than_a_million_comes_once_in_an_epoch():
    def many(count):
        split = ArraySplit(np.zeros((count, 1), np.float32), np.zeros(count, np.int64))
        return ArrayDataset(train=split, test=split, input_shape=(1,), num_classes=2)

    train = mixture(sources={"a": many(3), "b": many(2**20), "c": many(50_000)}).train
    _, indices = sample_order(train, 7).locate(tf.range(train.num_examples, dtype=tf.int64))
    assert np.array_equal(np.sort(indices), np.arange(2**20 + 50_003))


def test_targets_keep_their_fractions():
    def numbers(first):
        split = ArraySplit(np.zeros((4, 2)), first + np.arange(4, dtype=np.float32)[:, None] / 8)
        return ArrayDataset(
            train=split, test=split, input_shape=(2,), num_classes=1, label_kind="number"
        )

    mixed = mixture(sources={"a": numbers(0.125), "b": numbers(7.5)})
    label = mixed.train.fetch(tf.constant([1, 6], tf.int64))["label"]
    assert label.numpy().tolist() == [[0.25], [7.75]]
    assert mixed.label_kind == "number"
    classes = replace(numbers(0.0), label_kind="class")
    with pytest.raises(ValueError, match="the same label_kind"):
        mixture(sources={"a": numbers(0.125), "b": classes})
