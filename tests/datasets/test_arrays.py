"""Arrays in memory as a dataset."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.arrays import arrays


def columns(count=6):
    return {"age": np.arange(count, dtype=np.float64), "name": list("abcdefghij"[:count])}


def numbers(count=6):
    return np.arange(count * 2).reshape(count, 2)


def dataset(value, **options):
    return arrays(data=lambda: value, **options)


def batch_of(split, *indices):
    return split.fetch(tf.constant(indices, tf.int64))


def test_nests_keep_their_structure_and_types():
    x = {"columns": columns(), "pair": (numbers(), np.arange(6, dtype=np.uint8))}
    data = dataset((x, [np.arange(6.0), numbers()], np.arange(6)))
    batch = batch_of(data.train, 3, 0)
    assert batch["features"]["columns"]["name"].numpy().tolist() == [b"d", b"a"]
    assert batch["features"]["columns"]["age"].dtype == tf.float32
    assert batch["features"]["pair"][1].dtype == tf.uint8
    assert batch["label"][1].numpy().tolist() == [[6, 7], [0, 1]]
    assert batch["sample_weight"].numpy().tolist() == [3.0, 0.0]
    assert data.input_shape == {"columns": {"age": (), "name": ()}, "pair": ((2,), ())}
    assert data.feature_specs["pair"][0] == tf.TensorSpec([2], tf.int64)
    assert data.weighted


def test_parts_are_train_validation_and_test():
    part = (numbers(), np.arange(6) % 3)
    one, two, three = (dataset((part,) * count if count > 1 else part) for count in (1, 2, 3))
    assert (one.test.num_examples, one.validation) == (0, None)
    assert batch_of(one.test)["features"].shape == (0, 2)
    assert (two.test.num_examples, two.validation) == (6, None)
    assert three.validation.num_examples == three.test.num_examples == 6
    other = dataset(((numbers() / 2,), (numbers(4),))).test
    assert (other.num_examples, batch_of(other)["features"].dtype) == (4, tf.float32)


@pytest.mark.parametrize(
    ("label", "options", "expected"),
    [
        (np.arange(6) % 3, {}, ("class", 3)),
        ([True, False] * 3, {}, ("class", 2)),
        (np.arange(6) % 3, {"num_classes": 9}, ("class", 9)),
        (np.arange(6) - 1, {}, (None, 1)),
        (np.arange(6.0), {}, ("number", 1)),
        (np.ones([6, 4]), {}, ("number", 4)),
        (np.ones([6, 4]), {"label_kind": "class"}, ("class", 4)),
        (np.eye(6, dtype=int), {}, (None, 6)),
        (np.eye(6, dtype=int), {"label_kind": "multilabel"}, ("multilabel", 6)),
        (np.arange(6)[:, None], {}, (None, 6)),
        (np.arange(6)[:, None], {"label_kind": "class"}, ("class", 6)),
        (np.full([6, 2, 2], 4), {}, (None, 5)),
        (np.full([6, 2, 2], 4), {"label_kind": "class"}, ("class", 5)),
        (np.arange(6), {"label_kind": "number"}, ("number", 1)),
        (list("abcabc"), {}, (None, 1)),
        ({"a": np.arange(6)}, {}, (None, 1)),
        (None, {}, (None, 1)),
    ],
)
def test_kind_and_number_of_labels_are_seen(label, options, expected):
    data = dataset((numbers(), label), **options)
    assert (data.label_kind, data.num_classes) == expected


def test_digest_changes_with_what_is_trained_on():
    digests = [
        dataset((x, np.arange(6))).digest()
        for x in (columns(), columns(), {**columns(), "name": list("abcdeX")}, numbers())
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((numbers(), np.arange(5)), "of the train part must have one length, they have x 6, y 5;"),
        (({"a": numbers(), "b": numbers(4)}, None), "they have x/a 6, x/b 4; several inputs"),
        ((1, 2, 3, 4), "the train part is a tuple of 4; the function returns"),
        (None, "the train part is None"),
        ((numbers(0), np.arange(0)), "the train part has no example"),
        (tf.data.Dataset.range(3), "must be an array; use dataset=stream"),
        ((i for i in range(3)), "x of the train part is a generator, it must be an array; use"),
        ([[1], [1, 2]], "cannot be made an array: .*; pad it to one length"),
        (tf.ragged.constant([[1], [1, 2]]), r"make it dense by \.to_tensor"),
        (tf.sparse.from_dense([[1]]), r"dense by tf\.sparse\.to_dense"),
        (np.float32(3), "x of the train part is a single value"),
        (np.array(["a", None], object), r"among them None \(NoneType\); convert it"),
        (np.zeros(3, "datetime64[s]"), "x of the train part is an array of datetime64"),
        ({1: numbers()}, "has the key 1, keys must be texts"),
        ({"a": {}}, r"x of the train part\['a'\] is an empty dict"),
        ((numbers(), np.arange(6), np.array(["a"] * 6)), "sample_weight of.*part must be numbers"),
        ((numbers(), None, [np.nan] * 6), "has numbers that are not finite"),
        (((numbers(), np.arange(6)), (numbers(),)), "label of test must .* and not missing"),
        (((numbers(),), (numbers() * 1.0,)), r"as of train, int64\[2\], and not fl"),
        (((columns(),), (numbers(),)), r"as of train, \{age: float32\[\], name: string\[\]\}, and"),
    ],
)
def test_mistake_is_one_line(value, message):
    with pytest.raises(ValueError, match=f"data: .*{message}") as caught:
        dataset(value)
    assert "\n" not in str(caught.value)
