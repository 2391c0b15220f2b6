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


def mapped(change):
    return lambda: pairs().map(change)


def one_hot_batches():
    return pairs().map(lambda features, label: (features, tf.one_hot(label, 3))).batch(4)


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


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("class", lambda y: tf.one_hot(y, 3)),
        ("class", lambda y: tf.cast(y, tf.uint8)),
        ("number", lambda y: tf.cast(y, tf.float32)),
        ("number", lambda y: tf.one_hot(y, 3)),
        ("multilabel", lambda y: tf.one_hot(y, 3, dtype=tf.int64)),
    ],
)
def test_labels_of_each_kind_are_kept(kind, label):
    def labeled():
        return pairs().map(lambda features, number: (features, label(number)))

    data = dataset(labeled, labeled, label_kind=kind)
    assert data.label_kind == kind
    batch = data.test.fetch(tf.constant([2], tf.int64))
    assert batch["label"].numpy().tolist() == [label(tf.constant(2)).numpy().tolist()]


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
        ({"train": lambda: tf.data.Dataset.range(3)}, r"of train is int64\[\]: it must be \(fea"),
        ({"train": lambda: pairs().batch(4)}, r"\(float32\[\?,2\], int64\[\?\]\): it is a batch"),
        ({"test": lambda: pairs().batch(3, drop_remainder=True)}, "of test is .*: it is a batch"),
        ({"train": one_hot_batches}, r"\(float32\[\?,2\], float32\[\?,3\]\): it is a batch"),
        ({"train": mapped(lambda x, y: (x[: y + 1], y))}, "shape of the features must be static"),
        ({"train": mapped(lambda x, y: (x, y, 1.0))}, r"int64\[\], float32\[\]\): it must be \("),
        ({"train": mapped(lambda x, y: ({"a": x}, y))}, r"\(\{a: float32\[2\]\}, .* one dense"),
        ({"train": mapped(lambda x, y: (x, (y, y)))}, "the label must be one tensor"),
        ({"train": mapped(lambda x, y: (x, x[0]))}, r"an integer, or float32\[3\], .*; cast it"),
        ({"train": mapped(lambda x, y: (x, x)), "label_kind": "number"}, "a number, or 3 of them"),
        ({"label_kind": "multilabel"}, r"the label must be 3 integers \(dataset.label_kind=multil"),
    ],
)
def test_mistake_is_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        dataset(**options)
    assert "\n" not in str(caught.value)
