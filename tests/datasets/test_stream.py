"""Any tf.data.Dataset as a dataset."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.stream import stream


def pairs(count=6, **options):
    features = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return tf.data.Dataset.from_tensor_slices((features, np.arange(count) % 3))


def dicts():
    return pairs().map(lambda features, label: {"features": features, "label": label, "more": 1})


def unknown():
    return pairs().filter(lambda features, label: label != 7)


def endless():
    return pairs().repeat()


def dataset(train=pairs, test=pairs, **options):
    return stream(train=train, test=test, num_classes=3, **options)


@pytest.mark.parametrize("train", [pairs, dicts])
def test_split_repeats_the_examples_of_the_function(train):
    data = dataset(train)
    assert data.input_shape == (2,)
    assert data.train.num_examples == 6
    assert not data.train.in_memory
    labels = [int(row["label"]) for row in data.train.stream().take(8)]
    assert labels == [0, 1, 2, 0, 1, 2, 0, 1]


def test_function_is_called_for_each_stream():
    calls = []

    def counted():
        calls.append(1)
        return pairs()

    data = dataset(counted)
    for _ in range(2):
        data.train.stream()
    assert len(calls) == 3  # the first call tells shape and length


def test_test_examples_are_in_memory():
    test = dataset().test
    assert test.in_memory
    batch = test.fetch(tf.constant([5, 0], tf.int64))
    assert batch["features"].numpy().tolist() == [[10, 11], [0, 1]]
    assert batch["label"].numpy().tolist() == [2, 0]


@pytest.mark.parametrize("train", [unknown, endless])
def test_length_of_a_pass_can_be_given(train):
    assert dataset(train, num_examples=4).train.num_examples == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": unknown}, "dataset of train does not know; add dataset.num_examples"),
        ({"train": endless}, "dataset of train has no end; add dataset.num_examples"),
        ({"test": endless}, "dataset of test has no end"),
        ({"test": partial(pairs, 0)}, "dataset of test is empty"),
        ({"train": lambda: [1, 2]}, "must return a tf.data.Dataset, not list"),
        ({"train": lambda: tf.data.Dataset.range(3)}, r"an example must be \(features, label\)"),
        ({"train": lambda: pairs().batch(4)}, "their shape must be static"),
    ],
    ids=["unknown", "endless", "endless test", "empty", "list", "single", "batches"],
)
def test_mistake_is_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        dataset(**options)
    assert "\n" not in str(caught.value)
