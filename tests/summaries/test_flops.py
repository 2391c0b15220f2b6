"""Floating-point operations of graphs, against those counted by hand."""

import pytest
import tensorflow as tf

from trainer.summaries.flops import count_flops

BATCH = 8


def traced(function, *shapes):
    specs = [tf.TensorSpec(shape) for shape in shapes]
    return tf.function(function, autograph=False).get_concrete_function(*specs).graph


def step_of(model, shape):
    """Return the graph of the gradients of a model's weights for a batch."""

    def step(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(features, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return traced(step, [BATCH, *shape])


def test_step_of_a_dense_network():
    model = tf.keras.Sequential([tf.keras.layers.Dense(5), tf.keras.layers.Dense(3)])
    model.build([BATCH, 7])
    forward = 2 * BATCH * (7 * 5 + 5 * 3)
    # Backwards each weight has its gradient, and each input but the network's own.
    assert count_flops(step_of(model, [7])) == 2 * forward + 2 * BATCH * 5 * 3


def test_step_of_a_convolutional_network():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, padding="same"),
            layers.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2),
            layers.Conv2D(6, 1),
        ]
    )
    model.build([BATCH, 8, 8, 3])
    first = 2 * BATCH * 8 * 8 * (3 * 3 * 3 * 4)
    depthwise = 2 * BATCH * 4 * 4 * (3 * 3 * 4 * 2)
    last = 2 * BATCH * 4 * 4 * (8 * 6)
    assert count_flops(step_of(model, [8, 8, 3])) == 2 * first + 3 * (depthwise + last)


@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        ("ab,bc->ac", ([2, 3], [3, 4]), 2 * 3 * 4),
        ("...qhd,...khd->...hqk", ([5, 6, 2, 4], [5, 7, 2, 4]), 5 * 6 * 7 * 2 * 4),
        ("b...d,de->b...e", ([2, 3, 4, 5], [5, 6]), 2 * 3 * 4 * 5 * 6),
        ("ab->ba", ([2, 3],), 0),
    ],
)
def test_einsum(equation, shapes, products):
    graph = traced(lambda *tensors: tf.einsum(equation, *tensors), *shapes)
    assert count_flops(graph) == 2 * products


@pytest.mark.parametrize("options", [{}, {"transpose_a": True}, {"transpose_b": True}])
def test_products_of_batches(options):
    first = [5, 4, 3] if "transpose_a" in options else [5, 3, 4]
    second = [5, 2, 4] if "transpose_b" in options else [5, 4, 2]
    graph = traced(lambda a, b: tf.matmul(a, b, **options), first, second)
    assert count_flops(graph) == 2 * 5 * 3 * 4 * 2


def product(matrix):
    return tf.matmul(matrix, matrix)


def loop(matrix, **options):
    return tf.while_loop(
        lambda i, _: i < 7, lambda i, x: (i + 1, product(x)), (2, matrix), **options
    )


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (tf.function(product), 1),
        (tf.function(product, jit_compile=True), 1),
        (loop, 5),
        (lambda matrix: loop(matrix, maximum_iterations=3), 3),
        (lambda x: tf.cond(x[0, 0] > 0, lambda: product(product(x)), lambda: product(x)), 2),
        (lambda x: tf.while_loop(lambda y: y[0, 0] > 0, product, (x,)), 1),
        (tf.nn.softmax, 0),
    ],
)
def test_functions_loops_and_conditions(function, times):
    assert count_flops(traced(function, [4, 4])) == times * 2 * 4**3


def test_recurrent_layer_counts_as_often_as_there_are_time_steps():
    layer = tf.keras.layers.SimpleRNN(5)
    layer(tf.zeros([BATCH, 6, 3]))
    once = 2 * BATCH * (3 * 5 + 5 * 5)
    # Backwards as much for the weights and the state, but not the features. Keras traces one more.
    backwards = 2 * once - 2 * BATCH * 3 * 5
    assert count_flops(step_of(layer, [6, 3])) == 6 * (once + backwards) + once
