"""What a traced graph may not have: what nobody saves, hidden draws, softmax before such a loss."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import SMALL, lines_of, recipe
from trainer.engine.graph.checks.graph_check import GraphCheck, all_graphs, check_losses
from trainer.errors import ConfigError

INPUTS = tf.TensorSpec([4])


def check(function, saved=None, **options):
    """Trace a function with its gradient in a loop; return the lines that the check warns of."""
    lines = []
    checked = GraphCheck(lambda: saved or {}, lines.append, **options)

    @tf.function(autograph=False)
    def run(x):
        def body(i, x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return i + 1, tape.gradient(y, x, unconnected_gradients="zero")

        result = tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]
        checked("the step")
        return result

    run.get_concrete_function(INPUTS)
    return lines


def of_model(target):
    options = ("~model.l2", "train.steps=2", "writers=[jsonl]")
    return "model=softmax", f"model._target_={target}", *options


def trace(run):
    run.loop.trace(run.loop.feed.open(0, run.state.divergence_monitor.left_out.numpy()))


def in_loop(function):
    return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, function(x)), (0, x))[1]


def in_condition(function):
    return lambda x: tf.cond(x[0] > 0, lambda: function(x), lambda: x)


def in_function(function, **options):
    return tf.function(function, autograph=False, **options)


def in_compiled_function(function):
    return in_function(function, jit_compile=True)


WRAPPERS = [lambda function: function, in_loop, in_condition, in_function, in_compiled_function]


def assign(variable):
    return lambda x: x * variable.assign_add(1.0)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_variable_that_is_not_saved_is_refused(wrap):
    variable = tf.Variable([1.0] * 4, trainable=False, name="scale")
    function = wrap(lambda x: x * variable)
    problem = r"the step: ReadVariableOp in .* scale:0 \(shape \[4\]\), which is neither trained"
    with pytest.raises(ConfigError, match=problem) as caught:
        check(function)
    message = str(caught.value)
    assert "\n" not in message
    assert f"{__file__.rpartition('/')[2]}:" in message
    assert check(function, {"scale": variable}) == []
    assert check(function, {"deep": {"list": [variable]}}) == []


def test_variable_that_is_only_assigned_is_refused():
    variable = tf.Variable(0.0, trainable=False)
    with pytest.raises(ConfigError, match=r"AssignAddVariableOp .* the variable "):
        check(assign(variable))
    assert check(assign(variable), {"count": variable}) == []


DRAWS = {
    "RandomStandardNormal": lambda: tf.random.normal([4]),
    "Multinomial": lambda: tf.cast(tf.random.categorical(tf.zeros([4, 2]), 1)[:, 0], tf.float32),
    "RandomGamma": lambda: tf.random.gamma([4], 1.0),
    "RngReadAndSkip": lambda: tf.random.get_global_generator().normal([4]),
    "ParameterizedTruncatedNormal": lambda: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=[4], means=0.0, stdevs=1.0, minvals=-1.0, maxvals=1.0
    ),
    "LogUniformCandidateSampler": lambda: tf.random.log_uniform_candidate_sampler(
        tf.zeros([4, 1], tf.int64), 1, 1, False, 9
    )[2],
}


@pytest.mark.parametrize("kind", DRAWS)
def test_draws_of_a_hidden_counter_are_refused(kind):
    problem = rf"^the step: {kind} (in|\().*draws random numbers.*$"
    with pytest.raises(ConfigError, match=problem):
        check(in_function(lambda x: x * DRAWS[kind]()))


def own_seed(x):
    return x * tf.random.stateless_normal([4], [1, 2])


def test_draws_with_a_seed_pass_but_are_warned_of_in_shards():
    assert check(own_seed) == []
    (line,) = check(own_seed, in_shards=True)
    assert line.startswith("warning: the step: StatelessRandomNormalV2 in ")
    assert f"{__file__.rpartition('/')[2]}:" in line
    assert "draws with its own seed, so its numbers are not cut as the batch is" in line


@pytest.mark.slow
def test_nothing_is_warned_of_in_what_steadfast_itself_draws(tmp_path):
    messages = []
    options = (
        *SMALL, "model._target_=tests.support.toy_models.everything", "model.dropout=0.3",
        "model.batch_norm=true", "model.synchronized=false", "augment.crop=1",
        "dataset._target_=tests.support.toy_datasets.waves", "batch.accumulate=2", "batch.shards=4",
    )  # fmt: skip
    recipe(tmp_path, *options, receive=messages.append).train(lambda: False)
    assert not [line for line in lines_of(messages) if "own seed" in line]


def recurrent(dropout):
    """Return a function that calls what a GRU or LSTM of Keras 3 is on a GPU."""

    def call(x):
        state, sizes = tf.zeros([1, 1, 1]), {"params": tf.zeros([16]), "sequence_lengths": [4]}
        inputs = {"input": x[:, None, None], "input_h": state, "input_c": state}
        return tf.reshape(tf.raw_ops.CudnnRNNV3(**inputs, **sizes, dropout=dropout)[0], [4])

    return call


def test_recurrent_layer_draws_only_with_a_dropout():
    assert check(recurrent(0.0)) == []
    with pytest.raises(ConfigError, match=r"the step: CudnnRNN\w* .*draws random numbers"):
        check(recurrent(0.5))


def test_step_of_a_model_is_checked(tmp_path):
    messages = []
    options = of_model("tests.programs.untracked_variable.multiplied")
    run = recipe(tmp_path, *options, receive=messages.append)
    with pytest.raises(ConfigError, match=r"the training step: .* variable .*factor:0"):
        trace(run)
    assert not any("warning" in line for line in lines_of(messages))


def test_graphs_of_evaluations_and_predictions_are_checked(tmp_path):
    run = recipe(tmp_path, *of_model("tests.support.toy_ops.noisy_inference"))
    trace(run)
    with pytest.raises(ConfigError, match=r"the evaluation: RandomStandardNormal in .*noise"):
        run.evaluator.evaluate(lambda: False)
    with pytest.raises(ConfigError, match=r"the prediction: RandomStandardNormal in .*noise"):
        list(run.predictor.predict())


def python(x):
    return tf.ensure_shape(tf.py_function(np.sin, [x], tf.float32), [4])


def numpy(stateful):
    def call(x):
        return tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32, stateful), [4])

    return call


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x * tf.cast(tf.timestamp(), tf.float32), "Timestamp .* reads the clock"),
        (python, "EagerPyFunc .* calls Python code"),
        (numpy(True), "PyFunc .* calls Python code"),
    ],
)
def test_clock_and_python_code_are_warned_of_in_a_line(function, words):
    (line,) = check(lambda x: x + function(x) + function(x) * 0.0)[:1]
    assert "\n" not in line
    assert line.startswith("warning: the step: ")
    assert re.search(words, line)


def test_python_code_without_a_state_is_not_warned_of():
    assert check(numpy(False)) == []


LABELS = tf.constant([0, 2, 1, 0])
FLAGS = tf.one_hot(LABELS, 3)


def sparse_loss(x):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, x)


def binary_loss(x):
    return tf.nn.sigmoid_cross_entropy_with_logits(FLAGS, x)


def adversarial(x):
    return tf.nn.softplus(-x)


@tf.function(autograph=False)
def softmax_in_function(x):
    with tf.name_scope("inner"):
        return x, tf.nn.softmax(x)


def repeated(x):
    return tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, y + sparse_loss(x)), (0, sparse_loss(x))
    )


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
        (lambda x: sparse_loss(layer(x)), r"softmax \(layer model/last\)"),
        (lambda x: binary_loss(tf.sigmoid(x)), "sigmoid, of which"),
        (lambda x: adversarial(tf.sigmoid(x)), "sigmoid, of which"),
        (lambda x: sparse_loss(tf.cast(tf.cast(layer(x), tf.float16), tf.float32)), "softmax"),
        (lambda x: sparse_loss(tf.reshape(layer(x)[:, :2], [4, 1, 2])[:, 0]), "softmax"),
        (lambda x: sparse_loss(softmax_in_function(x)[1]), r"softmax \(layer inner\)"),
        (lambda x: repeated(layer(x)), "softmax"),
        (lambda x: sparse_loss(tf.where(x > 0.0, -1e9, layer(x))), "softmax"),
        (lambda x: sparse_loss(tf.concat([layer(x), tf.zeros([4, 1])], 1)), "softmax"),
    ],
)  # fmt: skip
def test_probabilities_are_found(function, found):
    with pytest.raises(ConfigError, match=f"takes logits, and is given .* a {found}"):
        check_losses(all_graphs(traced(function).graph))


@pytest.mark.parametrize(
    "function",
    [
        sparse_loss,
        binary_loss,
        lambda x: sparse_loss(softmax_in_function(x)[0]),
        lambda x: sparse_loss(tf.matmul(layer(x), tf.ones([3, 3]))),  # a hidden layer
        lambda x: sparse_loss(tf.nn.log_softmax(x)),  # the logarithm of probabilities is logits
        lambda x: sparse_loss(tf.math.log(layer(x))),
        lambda x: tf.nn.softmax_cross_entropy_with_logits(layer(x), x),  # of a teacher
        # Probabilities and logits of several heads in one output.
        lambda x: sparse_loss(tf.concat([tf.sigmoid(x), x], axis=1)[:, 3:]),
        lambda x: -tf.math.log1p(-tf.sigmoid(x)),  # a cross-entropy of probabilities
        # Keras goes back to the logits.
        lambda x: tf.keras.losses.sparse_categorical_crossentropy(LABELS, layer(x)),
        lambda x: tf.keras.losses.binary_crossentropy(FLAGS, tf.sigmoid(x)),
    ],
)
def test_logits_are_accepted(function):
    check_losses(all_graphs(traced(function).graph))
