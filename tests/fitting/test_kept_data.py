"""What names the folder of examples, what comes back, and what cannot be kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.fit_data import fit_data, kept_arrays
from trainer.errors import ConfigError
from trainer.fitting.kept_data import KeptData

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 3


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    x = {"numbers": X, "words": ["a", "b", "ä", "d", "e", "f"], "more": [X, {"deep": Y}]}
    kept = KeptData((x, Y, np.ones(6)), "data", tmp_path)
    features, label, weight = kept_arrays(path=str(kept.path))
    assert features["numbers"].dtype == np.float32
    np.testing.assert_array_equal(features["numbers"], X)
    assert features["words"].tolist() == x["words"]
    np.testing.assert_array_equal(features["more"][1]["deep"], Y)
    np.testing.assert_array_equal(label, Y)
    assert weight.dtype == np.float32
    assert kept.first["words"].tolist() == ["a"]
    assert str(kept) == f"{(12 + 12 + 6) * 4 + 2 * 48 + 24} B in {kept.path}"


def test_folder_is_named_by_the_content(tmp_path: Path) -> None:
    first = KeptData((X, Y), "data", tmp_path).path
    assert KeptData((X.tolist(), Y), "data", tmp_path).path == first
    assert KeptData((X, Y.astype(np.int32)), "data", tmp_path).path != first
    assert KeptData((X + 1, Y), "data", tmp_path).path != first
    assert KeptData(({"x": X}, Y), "data", tmp_path).path != first
    assert len(list(tmp_path.iterdir())) == 4


def test_shuffled_dataset_is_kept_in_one_order(tmp_path: Path) -> None:
    words = np.array([b"a", b"b", b"cc", b"d", b"e", b"f"])
    examples = tf.data.Dataset.from_tensor_slices(({"x": X, "word": words}, Y))
    shuffled = examples.shuffle(6).batch(4).prefetch(1)
    kept = [KeptData(shuffled, "data", tmp_path) for _ in range(3)]
    assert len({item.path for item in kept}) == 1
    assert kept[0].batch_size == 4
    features, label = kept_arrays(path=str(kept[0].path))
    order = np.argsort(features["x"][:, 0])
    np.testing.assert_array_equal(features["x"][order], X)
    np.testing.assert_array_equal(features["word"][order], words)
    np.testing.assert_array_equal(label[order], Y)
    single = KeptData(examples, "data", tmp_path)
    assert single.batch_size is None
    np.testing.assert_array_equal(kept_arrays(path=str(single.path))[1], Y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x.repeat(), r"without an end; leave out repeat\(\)$"),
        (lambda x: x.take(0), r"without an element$"),
        (lambda x: x.map(lambda a: tf.random.uniform([2])), r"draws random .*RandomUniform"),
        (
            lambda x: x.map(lambda a: tf.RaggedTensor.from_tensor([a])),
            r"with a RaggedTensorSpec; make it of dense tensors",
        ),
    ],
)
def test_datasets_that_cannot_be_kept_are_refused(
    make: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^data is a tf.data.Dataset .*{message}"):
        KeptData(make(tf.data.Dataset.from_tensor_slices(X)), "data", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y, Y, Y), r"^data has 4 values, it must be \(x, y\), "),
        (({"a": iter([1])}, Y), r"^data\[0\]\['a'\] is a list_iterator, which is no array; give "),
        (([[1], [1, 2]], Y), r"^data\[0\] is no array: .*; pad it to one length$"),
        (np.array([1, "a"], object), r"^data\[0\] is an array of object, it must be of numbers or"),
    ],
)
def test_other_values_are_refused(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        KeptData(data, "data", tmp_path)


def test_functions_may_return_either_kind() -> None:
    def examples() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    of_arrays = fit_data(data=lambda: (X, Y), held_out=lambda: (X[:2], Y[:2]))
    of_dataset = fit_data(data=examples, held_out=lambda: examples().take(1))
    assert [of_arrays.test.num_examples, of_dataset.test.num_examples] == [2, 4]
    assert of_arrays.num_classes == of_dataset.num_classes == 3
    assert fit_data(data=lambda: X).test.num_examples == 0
    with pytest.raises(ValueError, match=r"^the data and the validation must both be arrays, or"):
        fit_data(data=examples, held_out=lambda: (X, Y))
