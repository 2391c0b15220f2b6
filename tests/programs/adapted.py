"""Models of columns that adapt preprocessing layers, and a dataset of such columns."""

import keras
import numpy as np
import tensorflow as tf

from trainer.datasets.splits.training_features import training_features

SPECS = {
    "age": tf.TensorSpec([1], tf.float32),
    "job": tf.TensorSpec([1], tf.string),
    "pay": tf.TensorSpec([1], tf.float32),
}


class Rows:
    """People, each of one of two classes."""

    in_memory = True

    def __init__(self, num_examples):
        random = np.random.default_rng(num_examples)
        self.num_examples = num_examples
        self.columns = {
            "age": random.normal(40, 10, [num_examples, 1]).astype(np.float32),
            "job": random.choice([b"nurse", b"cook", b"clerk"], [num_examples, 1]),
            "pay": random.gamma(2, 3, [num_examples, 1]).astype(np.float32),
        }
        self.labels = (self.columns["age"][:, 0] > 40).astype(np.int64)

    def fetch(self, indices):
        with tf.init_scope(), tf.device("CPU:0"):
            columns = {name: tf.constant(values) for name, values in self.columns.items()}
            labels = tf.constant(self.labels)
        features = {name: tf.gather(values, indices) for name, values in columns.items()}
        return {"features": features, "label": tf.gather(labels, indices)}


class People:
    """The dataset."""

    num_classes = 2
    num_draws = 0
    feature_specs = SPECS
    input_shape = {name: tuple(spec.shape) for name, spec in SPECS.items()}  # noqa: RUF012

    def __init__(self, num_examples):
        self.train = Rows(num_examples)
        self.test = Rows(50)

    def transform(self, batch, draws):
        return batch


def people(*, num_examples: int = 300):
    return People(num_examples)


def others(*, num_examples: int = 300):
    """Return a dataset in which everybody is older, and has another job."""
    data = People(num_examples)
    data.train.columns["age"] += 100
    data.train.columns["job"][:] = b"pilot"
    return data


def _net(library, dataset, features):
    layers = library.layers
    data = training_features(dataset, 128)
    inputs = {
        name: library.Input(spec.shape[1:], dtype=spec.dtype.name, name=name)
        for name, spec in features.items()
    }
    age, job, pay = layers.Normalization(), layers.StringLookup(), layers.Discretization(num_bins=4)
    age.adapt(data.map(lambda x: x["age"]))
    job.adapt(data.map(lambda x: x["job"]))
    pay.adapt(data.map(lambda x: x["pay"]))
    words = layers.Embedding(job.vocabulary_size(), 2)(job(inputs["job"]))
    bins = layers.Embedding(4, 2)(pay(inputs["pay"]))
    flat = layers.Flatten()
    merged = layers.Concatenate()([age(inputs["age"]), flat(words), flat(bins)])
    return library.Model(inputs, layers.Dense(2)(merged))


def legacy_net(dataset, features):
    """tf_keras."""
    return _net(tf.keras, dataset, features)


def net(dataset, features):
    """Keras 3."""
    return _net(keras, dataset, features)


def feature_space(dataset):
    """Keras 3's FeatureSpace."""
    space = keras.utils.FeatureSpace(
        {"age": "float_normalized", "job": "string_categorical", "pay": "float_discretized"},
        output_mode="concat",
    )
    space.adapt(training_features(dataset))
    encoded = space.get_encoded_features()
    return keras.Model(space.get_inputs(), keras.layers.Dense(2)(encoded))
