"""What names the folder of examples, what comes back, and what cannot be kept."""

import itertools
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.fit_data import data_of_fit, kept_arrays
from trainer.datasets.splits.batches import passes
from trainer.errors import ConfigError
from trainer.fitting.kept_data import KeptData

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 3


def test_arrays_come_back_as_they_were(tmp_path):
    x = {"numbers": X, "words": ["a", "b", "ä", "d", "e", "f"], "more": [X, {"deep": Y}]}
    kept = KeptData((x, Y, np.ones(6)), "data", tmp_path)
    features, label, weight = kept_arrays(path=str(kept.path))
    assert features["numbers"].dtype == np.float32
    np.testing.assert_array_equal(features["numbers"], X)
    assert features["words"].tolist() == x["words"]
    np.testing.assert_array_equal(features["more"][1]["deep"], Y)
    np.testing.assert_array_equal(label, Y)
    assert weight.dtype == np.float32
    assert kept.first["features"]["words"].tolist() == ["a"]
    assert str(kept) == f"{(12 + 12 + 6) * 4 + 2 * 48 + 7 + 48 + 8} B in {kept.path}"


def test_byte_strings_keep_their_last_zeros_and_their_length(tmp_path):
    texts = [b"a\0", b"", b"\0\0", b"longer than the others" * 1000]
    kept = KeptData((np.array(texts, object), Y[:4]), "data", tmp_path)
    assert kept_arrays(path=str(kept.path))[0].tolist() == texts
    assert kept.size < 1.1 * sum(map(len, texts))
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    assert kept_arrays(path=str(KeptData(dataset, "data", tmp_path).path))[0].tolist() == texts


def test_two_may_keep_the_same_and_what_a_killed_one_left_is_removed(tmp_path):
    kept = KeptData((X, Y), "data", tmp_path)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=60)
    name = f".{kept.path.name}.{socket.gethostname()}"
    left, others = tmp_path / f"{name}.{child.pid}.aa.tmp", tmp_path / f"{name}.1.bb.tmp"
    left.mkdir()
    others.mkdir()
    barrier = threading.Barrier(4)

    def keep(_):
        barrier.wait(timeout=60)
        return KeptData((X + 1, Y), "data", tmp_path).path

    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(keep, range(4)))
    assert sorted(tmp_path.iterdir()) == sorted({kept.path, *paths, others})
    np.testing.assert_array_equal(kept_arrays(path=str(paths.pop()))[0], X + 1)


def test_folder_is_named_by_the_content(tmp_path):
    first = KeptData((X, Y), "data", tmp_path).path
    assert KeptData((X.tolist(), Y), "data", tmp_path).path == first
    assert KeptData((X, Y.astype(np.int32)), "data", tmp_path).path != first
    assert KeptData((X + 1, Y), "data", tmp_path).path != first
    assert KeptData(({"x": X}, Y), "data", tmp_path).path != first
    assert len(list(tmp_path.iterdir())) == 4


def test_shuffled_dataset_is_kept_in_one_order(tmp_path):
    words = np.array([b"a", b"b", b"cc", b"d", b"e", b"f"])
    examples = tf.data.Dataset.from_tensor_slices(({"x": X, "word": words}, Y))
    shuffled = examples.shuffle(6).batch(4).prefetch(1)
    kept = [KeptData(shuffled, "data", tmp_path) for _ in range(3)]
    assert len({item.path for item in kept}) == 1
    assert kept[0].batch_size == 4
    assert kept[0].unit == 1
    features, label = kept_arrays(path=str(kept[0].path))
    order = np.argsort(features["x"][:, 0])
    np.testing.assert_array_equal(features["x"][order], X)
    np.testing.assert_array_equal(features["word"][order], words)
    np.testing.assert_array_equal(label[order], Y)
    single = KeptData(examples, "data", tmp_path)
    assert (single.batch_size, single.unit) == (None, 1)
    np.testing.assert_array_equal(kept_arrays(path=str(single.path))[1], Y)


class Halves(keras.utils.PyDataset):
    """Batches of X and Y."""

    def __init__(self, count, size):
        super().__init__()
        self._count, self._size = count, size

    def __len__(self):
        return self._count

    def __getitem__(self, number):
        rows = slice(number * self._size, (number + 1) * self._size)
        return X[rows], Y[rows]


def pairs():
    """Yield structured batches: two times five rows."""
    yield from np.random.normal(size=[3, 2, 5])


EXAMPLES = tf.data.Dataset.from_tensor_slices((X, Y))


@pytest.mark.parametrize(
    ("make", "batch_size", "unit", "rows"),
    [
        (lambda: EXAMPLES, None, 1, 6),
        (lambda: EXAMPLES.batch(4), 4, 0, 6),
        (lambda: EXAMPLES.shuffle(6).batch(4), 4, 1, 6),
        (lambda: EXAMPLES.shuffle(6).batch(4).map(lambda x, y: (x / 2, y)), 4, 1, 6),
        (lambda: EXAMPLES.batch(2).shuffle(3).map(lambda x, y: (x[:1], y[:1])), 1, 1, 3),
        (lambda: EXAMPLES.repeat().batch(4), 4, 0, 6),
        (lambda: EXAMPLES.cache().repeat().shuffle(6).batch(4).prefetch(1), 4, 1, 6),
        (lambda: EXAMPLES.batch(4).repeat().map(lambda x, y: (x, y)), 4, 0, 6),
        (lambda: EXAMPLES.filter(lambda x, y: True).repeat().batch(4), 4, 0, 20),
        (lambda: Halves(3, 2), 2, 2, 6),
        (pairs, 2, 0, 6),
        (lambda: itertools.cycle([(X[:4], Y[:4])]), 4, 0, 20),
    ],
)
def test_batches_are_kept_as_the_program_makes_them(make, batch_size, unit, rows, tmp_path):
    kept = [KeptData(make(), "data", tmp_path, steps=5) for _ in range(2)]
    assert (kept[0].batch_size, kept[0].unit) == (batch_size, unit)
    assert len(kept_arrays(path=str(kept[0].path))[0]) == rows
    assert kept[0].path == kept[1].path


def test_batches_of_several_lengths_are_padded_each_to_its_own(tmp_path):
    def texts():
        for words in ("a b", "a b c d"):
            yield np.array([words.split()] * 2), np.zeros(2)

    kept = KeptData(texts(), "data", tmp_path)
    dataset = data_of_fit(data=lambda: kept_arrays(path=str(kept.path)), unit=kept.unit)
    assert dataset.test.fetch(tf.zeros([0], tf.int64))["features"].shape == [0, 0]
    assert dataset.feature_specs == tf.TensorSpec([None], tf.string)
    fetched = [dataset.train.fetch(tf.constant([i, i + 1], tf.int64)) for i in (0, 2)]
    assert [batch["features"].shape for batch in fetched] == [(2, 2), (2, 4)]
    assert fetched[1]["features"].numpy()[1].tolist() == [b"a", b"b", b"c", b"d"]
    stream = data_of_fit(data=texts, num_examples=4, batched=True).train.batches(2)
    assert [batch["features"].shape[1] for batch in stream.take(4)] == [2, 4, 2, 4]


def test_triples_of_images_are_features_and_weights_may_be_a_column():
    images = np.zeros([4, 3, 3, 1], np.float32)
    triple = (images, images + 1, images + 2)
    for data in (triple, tf.data.Dataset.from_tensor_slices(triple).batch(2)):
        dataset = data_of_fit(data=lambda data=data: data)
        assert [spec.shape for spec in dataset.feature_specs] == [(3, 3, 1)] * 3
    for data in ((X, Y, np.ones([6, 1])), EXAMPLES.batch(2).map(lambda x, y: (x, y, x[:, :1]))):
        dataset = data_of_fit(data=lambda data=data: data)
        assert dataset.weighted
        if isinstance(data, tuple):
            indices = tf.range(2, dtype=tf.int64)
            assert dataset.train.fetch(indices)["sample_weight"].shape == [2]
        else:
            assert next(iter(dataset.train.batches(3)))["sample_weight"].shape == [3]


def test_passes_repeat_whoever_draws_meanwhile():
    def draws():
        yield from np.random.random(3)

    def first(meanwhile):
        made = [(item, meanwhile())[0] for item in itertools.islice(passes(draws, 5), 7)]
        order = [item[0][0, 0] for item in itertools.islice(passes(lambda: Halves(3, 2), 5), 9)]
        assert sorted(order[:3]) == sorted(order[3:6]) == [0.0, 4.0, 8.0]
        return [*made, *order]

    state = np.random.get_state()
    assert first(np.random.random) == first(lambda: None)
    assert len(set(first(lambda: None)[:7])) == 7
    np.random.set_state(state)
    with pytest.raises(ValueError, match=r"^a pass over the data has no batch; "):
        next(passes(lambda: iter(()), 5))


VECTORS = tf.data.Dataset.from_tensor_slices(X)


class Random(Halves):
    def __getitem__(self, number):
        return np.random.normal(size=[2, 2]), Y[:2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (VECTORS.filter(lambda a: True).repeat(), "without an end; give.*as to model.fit$"),
        (VECTORS.map(lambda a: tf.random.uniform([2])), r"draws random .*RandomUniform"),
        (Random(3, 2), r"^data \(Random\) makes another batch 0 each time: "),
        (iter(()), r"^data has no batch; a generator that was read once "),
        (([[1], [1, 2]], Y), r"^data\[0\] cannot be made an array: .*; pad it to one length$"),
    ],
)
def test_data_that_cannot_be_kept_are_refused(data, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        KeptData(data, "data", tmp_path)
    assert list(tmp_path.iterdir()) == []
