"""Examples of any structure: arrays in memory, and any tf.data.Dataset as a stream."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_split
from trainer.datasets.arrays import arrays
from trainer.datasets.fit_data import data_of_fit
from trainer.datasets.stream import stream


def numbers(count=6):
    return np.arange(count * 2).reshape(count, 2)


def columns(count=6):
    return {"age": np.arange(count, dtype=np.float64), "name": list("abcdefghij"[:count])}


def in_memory(value, **options):
    return arrays(data=lambda: value, **options)


def pairs(count=6):
    features = numbers(count).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, np.arange(count) % 3))


def mapped(change):
    return lambda: pairs().map(change)


def unknown():
    return pairs().filter(lambda features, label: label != 7)


def endless():
    return pairs().repeat()


def streamed(train=pairs, test=pairs, **options):
    return stream(train=train, test=test, **{"num_classes": 3, **options})


def batch_of(split, *indices):
    return split.fetch(tf.constant(indices, tf.int64))


def test_arrays_keep_their_structure_and_types():
    x = {"columns": columns(), "pair": (numbers(), np.arange(6, dtype=np.uint8))}
    data = in_memory((x, [np.arange(6.0), numbers()], np.arange(6)))
    batch = batch_of(data.train, 3, 0)
    assert batch["features"]["columns"]["name"].numpy().tolist() == [b"d", b"a"]
    assert batch["features"]["columns"]["age"].dtype == tf.float32
    assert batch["features"]["pair"][1].dtype == tf.uint8
    assert batch["label"][1].numpy().tolist() == [[6, 7], [0, 1]]
    assert batch["sample_weight"].numpy().tolist() == [3.0, 0.0]
    assert data.input_shape == {"columns": {"age": (), "name": ()}, "pair": ((2,), ())}
    assert data.feature_specs["pair"][0] == tf.TensorSpec([2], tf.int64)
    assert data.weighted
    check_split(in_memory((numbers(), np.arange(6), np.arange(6.0))).train)
    check_split(in_memory(np.array(list("abcdef"))).train)


def test_batches_of_a_stream_keep_their_structure():
    def source():
        return pairs().map(lambda x, y: ({"x": x, "t": tf.as_string(y)}, (y, x), 0.5)).batch(4)

    data = stream(train=source, test=source)
    assert (data.label_kind, data.weighted) == (None, True)
    assert data.input_shape == {"x": (2,), "t": ()}
    batch = batch_of(data.test, 5, 0)
    assert batch["features"]["t"].numpy().tolist() == [b"2", b"0"]
    assert batch["label"][1].numpy().tolist() == [[10, 11], [0, 1]]
    assert batch["sample_weight"].numpy().tolist() == [0.5, 0.5]
    row = next(iter(data.train.stream()))["features"]
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, row)
    assert specs == data.feature_specs
    alone = stream(train=lambda: pairs().map(lambda x, y: x).batch(4))
    assert (alone.label_kind, alone.num_classes, alone.test.num_examples) == (None, 1, 0)
    assert set(next(iter(alone.train.stream()))) == {"features"}


def test_parts_of_arrays_are_train_validation_and_test():
    part = (numbers(), np.arange(6) % 3)
    one, two, three = (in_memory((part,) * count if count > 1 else part) for count in (1, 2, 3))
    assert (one.test.num_examples, one.validation) == (0, None)
    assert batch_of(one.test)["features"].shape == (0, 2)
    assert (two.test.num_examples, two.validation) == (6, None)
    assert three.validation.num_examples == three.test.num_examples == 6
    other = in_memory(((numbers() / 2,), (numbers(4),))).test
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
    data = in_memory((numbers(), label), **options)
    assert (data.label_kind, data.num_classes) == expected
    if isinstance(label, np.ndarray):

        def source():
            return tf.data.Dataset.from_tensor_slices((numbers(), label))

        data = stream(train=source, test=source, **options)
        assert (data.label_kind, data.num_classes) == expected
        is_column = expected[0] == "class" and label.shape[1:] == (1,)
        found = batch_of(data.test, 2)["label"]
        assert found.numpy().tolist() == (label[2] if is_column else label[2:3]).tolist()


@pytest.mark.parametrize(
    "train",
    [
        pairs,
        mapped(lambda x, y: {"features": x, "label": y, "more": 1}),
        lambda: pairs().batch(4).prefetch(1),
        lambda: pairs().batch(3, drop_remainder=True),
    ],
)
def test_stream_repeats_the_examples_of_the_function(train):
    data = streamed(train, train)
    assert (data.input_shape, data.train.in_memory) == ((2,), False)
    assert data.train.num_examples == 6 == data.test.num_examples
    labels = [int(row["label"]) for row in data.train.stream().take(8)]
    assert labels == [0, 1, 2, 0, 1, 2, 0, 1]


def generated():
    spec = tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64)
    batches = tf.data.Dataset.from_generator(
        lambda: [(np.ones([3, 2]), [0] * 3)], output_signature=spec
    )
    return batches.apply(tf.data.experimental.assert_cardinality(1))


def of_two_lengths():
    yield np.ones([2, 5], np.int32), np.zeros([2])
    yield np.ones([2, 3], np.int32), np.zeros([2])


def test_batches_of_generators_may_differ_in_length():
    data = data_of_fit(data=of_two_lengths, held_out=of_two_lengths, num_examples=4)
    rows = data.train.stream().take(4)
    assert [row["features"].shape[0] for row in rows] == [5, 5, 3, 3]
    pairs = [data.test.fetch(tf.constant(two))["features"] for two in ([0, 1], [2, 3])]
    assert [batch.shape for batch in pairs] == [(2, 5), (2, 3)]


@pytest.mark.parametrize(
    "source",
    [
        unknown,
        endless,
        lambda: pairs().batch(4).take(1),
        lambda: pairs().batch(2).map(lambda x, y: (x[:1], y[:1])).map(lambda x, y: (x, y)),
        generated,
    ],
)
def test_unknown_length_must_be_given(source):
    with pytest.raises(ValueError, match=r"add dataset\.num_examples"):
        streamed(source)
    assert streamed(source, num_examples=4).train.num_examples == 4


def noisy(features, label):
    return features + tf.random.uniform([2]), label


def generated_noise(generator, features, label):
    return features + generator.uniform([2]), label


def of_generator():
    draw = partial(generated_noise, tf.random.Generator.from_seed(1))
    return pairs().map(draw, num_parallel_calls=2)


def interleaved():
    parts = tf.data.Dataset.range(2)
    return parts.interleave(lambda _: pairs().map(noisy), num_parallel_calls=2)


def in_any_order():
    return pairs().map(lambda *row: row, num_parallel_calls=2, deterministic=False)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda: pairs().map(noisy, num_parallel_calls=4).batch(2), "RandomUniform.* in parallel"),
        (of_generator, "in parallel calls: which element gets which is chance"),
        (interleaved, "RandomUniform"),
        (in_any_order, "ParallelMapDataset of train has deterministic=False"),
    ],
)
def test_numbers_that_parallel_calls_draw_are_refused(train, message):
    with pytest.raises(ValueError, match=message):
        streamed(train)


def test_numbers_of_one_call_after_the_other_and_of_seeds_are_taken():
    def seeded(row, seed):
        return row[0] + tf.random.stateless_uniform([2], [seed, seed]), row[1]

    def stateless():
        seeds = tf.data.Dataset.random(seed=0)
        return tf.data.Dataset.zip(pairs(), seeds).map(seeded, num_parallel_calls=2)

    for train in (mapped(noisy), stateless):
        assert streamed(train).train.digest() == streamed(train).train.digest()


def test_digest_changes_with_what_is_trained_on():
    xs = (columns(), columns(), {**columns(), "name": list("abcdeX")}, numbers())
    digests = [in_memory((x, np.arange(6))).digest() for x in xs]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_function_draws_the_same_without_a_seed():
    def source():
        return tf.data.Dataset.from_tensor_slices(np.random.rand(6, 2)).shuffle(6)

    state = np.random.get_state()[1].tolist()
    one, two = (stream(train=source, test=source) for _ in range(2))
    assert np.random.get_state()[1].tolist() == state
    assert np.array_equal(*(batch_of(x.test, *range(6))["features"] for x in (one, two)))
    assert one.digest() == two.digest()
    assert streamed().digest() not in (one.digest(), streamed(partial(pairs, 9)).digest())
    draws = np.random.default_rng()
    data = streamed(lambda: tf.data.Dataset.from_tensors((draws.random(2), 0)))
    with pytest.raises(ValueError, match="other examples each time, so that a run"):
        data.digest()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((numbers(), np.arange(5)), "of the train part must have one length, they have x 6, y 5;"),
        (tf.ragged.constant([[1], [1, 2]]), r"make it dense by \.to_tensor"),
        (np.array(["a", None], object), r"among them None \(NoneType\); convert it"),
        (((numbers(),), (numbers() * 1.0,)), r"as of train, int64\[2\], and not fl"),
    ],
)
def test_mistake_in_arrays_is_one_line(value, message):
    with pytest.raises(ValueError, match=f"^data: .*{message}.*$"):
        in_memory(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": unknown}, "dataset of train does not declare; add dataset.num_examples"),
        ({"train": mapped(lambda x, y: (x[: y + 1], y))}, r"such as \(1,\) and \(2,\): the shape"),
        ({"train": mapped(lambda x, y: (x, x[0]))}, r"an integer, or float32\[3\], .*; cast it"),
        ({"test": mapped(lambda x, y: (x, y + 1))}, r"labels go from 1 to 3, .* in 0..2 \(datas"),
    ],
)
def test_mistake_in_a_stream_is_one_line(options, message):
    with pytest.raises(ValueError, match=f"^.*{message}.*$"):
        streamed(**{"label_kind": "class", **options})


@pytest.mark.slow
@pytest.mark.parametrize("library", [keras, tf.keras], ids=["keras3", "tf_keras"])
def test_datasets_of_keras_are_streams(tmp_path, library):
    for number in range(10):
        for name in ("cats", "dogs"):
            (tmp_path / name).mkdir(exist_ok=True)
            image = tf.io.encode_png(np.full([6, 5, 3], number, np.uint8)).numpy()
            (tmp_path / name / f"{number}.png").write_bytes(image)
            (tmp_path / name / f"{number}.txt").write_text(name)

    def data(function, *args, **options):
        source = partial(getattr(library.utils, function), *args, **options)
        return stream(train=source, test=source)

    images = data("image_dataset_from_directory", tmp_path, image_size=(4, 4), batch_size=8)
    assert (images.class_names, images.label_kind) == (["cats", "dogs"], "class")
    assert images.train.num_examples == images.test.num_examples == 20
    assert images.input_shape == (4, 4, 3)
    assert images.digest() == images.digest()
    texts = data("text_dataset_from_directory", tmp_path, batch_size=8)
    assert (texts.num_classes, texts.input_shape) == (2, ())
    assert texts.feature_specs.dtype == tf.string
    values = np.arange(12.0)
    series = data("timeseries_dataset_from_array", values[:, None], values[3:], 3, batch_size=4)
    assert (series.label_kind, series.input_shape) == ("number", (3, 1))
    assert series.test.num_examples == 9
