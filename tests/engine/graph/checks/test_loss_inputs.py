"""Losses of logits that are given probabilities."""

import pytest
import tensorflow as tf

from trainer.engine.graph.checks.graph_check import check_losses
from trainer.engine.graph.checks.traced_operations import all_graphs
from trainer.errors import ConfigError

LABELS = tf.constant([0, 2, 1, 0])
FLAGS = tf.one_hot(LABELS, 3)


def sparse(x):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, x)


def dense(x):
    return tf.nn.softmax_cross_entropy_with_logits(FLAGS, x)


def binary(x):
    return tf.nn.sigmoid_cross_entropy_with_logits(FLAGS, x)


def adversarial(x):
    return tf.nn.softplus(-x)


@tf.function(autograph=False)
def in_function(x):
    with tf.name_scope("inner"):
        return x, tf.nn.softmax(x)


def repeated(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + sparse(x)), (0, sparse(x)))


def traced(function):
    return tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec([4, 3], tf.float32)
    )


def layer(x):
    with tf.name_scope("model"), tf.name_scope("last"):
        return tf.nn.softmax(x)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: sparse(layer(x)), r"softmax \(layer model/last\)"),
        (lambda x: binary(tf.sigmoid(x)), "sigmoid, of which"),
        (lambda x: adversarial(tf.sigmoid(x)), "sigmoid, of which"),
        (lambda x: sparse(tf.cast(tf.cast(layer(x), tf.float16), tf.float32)), "softmax"),
        (lambda x: sparse(tf.reshape(layer(x)[:, :2], [4, 1, 2])[:, 0]), "softmax"),
        (lambda x: sparse(in_function(x)[1]), r"softmax \(layer inner\)"),
        (lambda x: repeated(layer(x)), "softmax"),
        (lambda x: sparse(tf.where(x > 0.0, -1e9, layer(x))), "softmax"),
        (lambda x: sparse(tf.concat([layer(x), tf.zeros([4, 1])], 1)), "softmax"),
    ],
)  # fmt: skip
def test_probabilities_are_found(function, found):
    with pytest.raises(ConfigError, match=f"takes logits, and is given .* a {found}"):
        check_losses(all_graphs(traced(function).graph))


@pytest.mark.parametrize(
    "function",
    [
        sparse,
        binary,
        lambda x: sparse(in_function(x)[0]),
        lambda x: sparse(tf.matmul(layer(x), tf.ones([3, 3]))),  # a hidden layer
        lambda x: sparse(tf.nn.log_softmax(x)),  # the logarithm of probabilities is logits
        lambda x: sparse(tf.math.log(layer(x))),
        lambda x: tf.nn.softmax_cross_entropy_with_logits(layer(x), x),  # of a teacher
        # Probabilities and logits of several heads in one output.
        lambda x: sparse(tf.concat([tf.sigmoid(x), x], axis=1)[:, 3:]),
        lambda x: -tf.math.log1p(-tf.sigmoid(x)),  # a cross-entropy of probabilities
        # Keras goes back to the logits.
        lambda x: tf.keras.losses.sparse_categorical_crossentropy(LABELS, layer(x)),
        lambda x: tf.keras.losses.binary_crossentropy(FLAGS, tf.sigmoid(x)),
    ],
)
def test_logits_are_accepted(function):
    check_losses(all_graphs(traced(function).graph))
