"""Any tf.data.Dataset as a dataset."""

from functools import partial

import keras
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
    assert (data.num_classes, data.weighted) == (3, False)
    assert data.label_kind == kind
    batch = data.test.fetch(tf.constant([2], tf.int64))
    assert batch["label"].numpy().tolist() == [label(tf.constant(2)).numpy().tolist()]


def tagged():
    """Return single examples, each a sequence with a label for each of its steps."""
    features = np.zeros([4, 5, 2], np.float32)
    return tf.data.Dataset.from_tensor_slices((features, np.full([4, 5], 2)))


def test_length_of_a_stream_of_batches_is_that_of_its_examples():
    for batched in (pairs().batch(4).prefetch(1), pairs().batch(3, drop_remainder=True)):
        data = dataset(lambda batched=batched: batched, lambda batched=batched: batched)
        assert data.train.num_examples == 6 == data.test.num_examples
        labels = [int(row["label"]) for row in data.train.stream().take(8)]
        assert labels == [0, 1, 2, 0, 1, 2, 0, 1]


def generated():
    spec = tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64)
    batches = tf.data.Dataset.from_generator(
        lambda: [(np.ones([3, 2]), [0] * 3)], output_signature=spec
    )
    return batches.apply(tf.data.experimental.assert_cardinality(1))


@pytest.mark.parametrize(
    "source",
    [
        lambda: unknown().batch(2),
        lambda: endless().batch(2),
        lambda: pairs().batch(4).take(1),
        lambda: pairs().batch(2).map(lambda x, y: (x[:1], y[:1])).map(lambda x, y: (x, y)),
        generated,
    ],
)
def test_unknown_length_of_batches_must_be_given(source):
    with pytest.raises(ValueError, match=r"add dataset\.num_examples"):
        dataset(source)


def noisy(features, label):
    return features + tf.random.uniform([2]), label


def generated_noise(generator, features, label):
    return features + generator.uniform([2]), label


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda: pairs().map(noisy, num_parallel_calls=4).batch(2), "RandomUniform.* in parallel"),
        (
            lambda: pairs().map(
                partial(generated_noise, tf.random.Generator.from_seed(1)), num_parallel_calls=2
            ),
            "in parallel calls: which element gets which is chance",
        ),
        (
            lambda: tf.data.Dataset.range(2).interleave(
                lambda _: pairs().map(noisy), num_parallel_calls=2
            ),
            "RandomUniform",
        ),
        (
            lambda: pairs().map(lambda *row: row, num_parallel_calls=2, deterministic=False),
            "ParallelMapDataset of train has deterministic=False",
        ),
    ],
)
def test_numbers_that_parallel_calls_draw_are_refused(train, message):
    with pytest.raises(ValueError, match=message):
        dataset(train)


def test_numbers_of_one_call_after_the_other_and_of_seeds_are_taken():
    def seeded(row, seed):
        return row[0] + tf.random.stateless_uniform([2], [seed, seed]), row[1]

    def stateless():
        seeds = tf.data.Dataset.random(seed=0)
        return tf.data.Dataset.zip(pairs(), seeds).map(seeded, num_parallel_calls=2)

    for train in (mapped(noisy), stateless):
        assert dataset(train).train.digest() == dataset(train).train.digest()


def test_anything_in_a_batch_is_kept_by_its_structure():
    def source():
        examples = pairs().map(lambda x, y: ({"x": x, "t": tf.as_string(y)}, (y, x), 0.5))
        return examples.batch(4)

    data = stream(train=source, test=source)
    assert data.label_kind is None
    assert data.weighted
    assert data.input_shape == {"x": (2,), "t": ()}
    row = next(iter(data.train.stream()))
    batch = data.test.fetch(tf.constant([5, 0], tf.int64))
    assert batch["features"]["t"].numpy().tolist() == [b"2", b"0"]
    assert batch["label"][1].numpy().tolist() == [[10, 11], [0, 1]]
    assert batch["sample_weight"].numpy().tolist() == [0.5, 0.5]
    for example, spec in zip(
        tf.nest.flatten(row["features"]), tf.nest.flatten(data.feature_specs), strict=True
    ):
        assert (example.shape, example.dtype) == (spec.shape, spec.dtype)


def test_features_alone_have_no_label():
    data = stream(train=lambda: pairs().map(lambda x, y: x).batch(4))
    assert (data.label_kind, data.num_classes, data.test.num_examples) == (None, 1, 0)
    assert set(next(iter(data.train.stream()))) == {"features"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (pairs, ("class", 3)),
        (mapped(lambda x, y: (x, x[0])), ("number", 1)),
        (mapped(lambda x, y: (x, x)), ("number", 2)),
        (mapped(lambda x, y: (x, y - 1)), (None, 1)),
        (mapped(lambda x, y: (x, [y, y])), (None, 3)),
        (mapped(lambda x, y: (x, {"a": y})), (None, 1)),
        (tagged, (None, 3)),
    ],
)
def test_kind_and_number_of_labels_are_seen(source, expected):
    data = stream(train=source)
    assert (data.label_kind, data.num_classes) == expected


def test_column_of_classes_is_their_number():
    source = mapped(lambda x, y: (x, [y]))
    assert dataset(source, source, label_kind="class").test.labels.shape == (6,)
    assert stream(train=source, test=source).test.labels.shape == (6, 1)


def test_function_draws_the_same_without_a_seed():
    def source():
        return tf.data.Dataset.from_tensor_slices(np.random.rand(6, 2)).shuffle(6)

    state = np.random.get_state()[1].tolist()
    one, two = (stream(train=source, test=source) for _ in range(2))
    assert np.random.get_state()[1].tolist() == state
    indices = tf.range(6, dtype=tf.int64)
    assert np.array_equal(*(data.test.fetch(indices)["features"] for data in (one, two)))
    assert one.digest() == two.digest()
    assert dataset().digest() not in (one.digest(), dataset(partial(pairs, 9)).digest())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": unknown}, "dataset of train does not know; add dataset.num_examples"),
        ({"train": endless}, "dataset of train has no end; add dataset.num_examples"),
        ({"test": endless}, "dataset of test has no end"),
        ({"test": partial(pairs, 0)}, "dataset of test is empty"),
        ({"train": lambda: [1, 2]}, "must return a tf.data.Dataset, not list"),
        ({"train": lambda: tf.data.Dataset.range(3)}, "int64.*there is not one label; leave"),
        ({"train": mapped(lambda x, y: (x[: y + 1], y))}, r"such as \(1,\) and \(2,\): the shape"),
        ({"train": mapped(lambda x, y: (x, y, 1, 2))}, r"\): it must be \(features, label\), \("),
        ({"train": mapped(lambda x, y: (x, (y, y)))}, "there is not one label; leave"),
        ({"train": mapped(lambda x, y: (x, x[0]))}, r"an integer, or float32\[3\], .*; cast it"),
        ({"train": mapped(lambda x, y: (x, x)), "label_kind": "number"}, "a number, or 3 of them"),
        ({"label_kind": "multilabel"}, r"the label must be 3 integers \(dataset.label_kind=multil"),
        ({"test": mapped(lambda x, y: (x, x))}, r"label of test .* and not float32\[2\]"),
        ({"test": mapped(lambda x, y: (x, y + 1))}, r"labels go from 1 to 3, .* in 0..2 \(datas"),
        ({"train": mapped(lambda x, y: (tf.RaggedTensor.from_tensor([x]), y))}, r"by .to_tensor"),
        ({"train": mapped(lambda x, y: (tf.sparse.from_dense(x), y))}, "tf.sparse.to_dense"),
        ({"train": mapped(lambda x, y: (x[: y + 1], x[: y + 1]))}, "may be a batch of numbers, or"),
        ({"batched": True}, "it is no batch, for a part of it has no dimension; leave"),
    ],
)
def test_mistake_is_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        dataset(**{"label_kind": "class", **options})
    assert "\n" not in str(caught.value)


def test_function_of_other_examples_each_time_is_refused():
    draws = np.random.default_rng()
    data = dataset(lambda: tf.data.Dataset.from_tensors((draws.random(2), 0)))
    with pytest.raises(ValueError, match="other examples each time, so that a run"):
        data.digest()


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
    numbers = np.arange(12.0)
    series = data("timeseries_dataset_from_array", numbers[:, None], numbers[3:], 3, batch_size=4)
    assert (series.label_kind, series.input_shape) == ("number", (3, 1))
    assert series.test.num_examples == 9
