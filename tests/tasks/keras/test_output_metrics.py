"""Metrics of Keras: means by the examples, and all others over a whole split."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.tasks.keras.output_metrics import WholeSplitMetrics, metrics_of

LIBRARIES = [pytest.param(tf.keras, id="tf_keras"), pytest.param(keras, id="keras")]
RNG = np.random.default_rng(0)
PROBABILITIES = tf.nn.softmax(RNG.normal(size=(8, 3))).numpy().astype("f")
CLASSES = RNG.integers(0, 3, 8)
FLAGS = (RNG.random((8, 1)) > 0.5).astype("f")


@pytest.mark.parametrize("library", LIBRARIES)
def test_accuracy_is_chosen_by_the_shapes(library):
    (accuracy,) = metrics_of("task.metrics", ["accuracy"], ["output_1"], library)
    right = (PROBABILITIES.argmax(1) == CLASSES).astype("f")
    one_hot = np.eye(3, dtype="f")[CLASSES]
    for label, output, expected in (
        (CLASSES, PROBABILITIES, right),
        (one_hot, PROBABILITIES, right),
        (FLAGS[:, 0], PROBABILITIES[:, :1], (PROBABILITIES[:, 0] > 0.5) == FLAGS[:, 0]),
    ):
        found = accuracy.per_example(tf.constant(label), tf.constant(output), None)
        np.testing.assert_array_equal(found, expected.astype("f"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_metrics_that_are_no_means_are_those_of_the_whole_split(library):
    auc, f1 = library.metrics.AUC(name="auc"), library.metrics.F1Score(name="f1")
    found = metrics_of("task.metrics", [auc, f1], ["output_1"], library)
    assert [metric.choose for metric in found] == [None, None]
    whole = WholeSplitMetrics(found)
    flags = np.concatenate([FLAGS, 1 - FLAGS], axis=1)
    outputs = np.concatenate([PROBABILITIES[:, :1], 1 - PROBABILITIES[:, :1]], axis=1)
    blocks = [{"label/0": flags[i], "output/0": outputs[i]} for i in (slice(0, 5), slice(5, 8))]
    values = whole.values(iter(blocks))
    for name, expected in (("auc", auc), ("f1", f1)):
        expected.update_state(flags, outputs)
        numbers = [value for key, value in values.items() if key.partition("/")[0] == name]
        np.testing.assert_allclose(numbers, np.ravel(expected.result()), rtol=1e-6)
    assert whole.values(iter(blocks)) == values  # they begin empty


def test_names_have_the_output_where_there_are_several():
    found = metrics_of("task.metrics", {"a": ["mae"], "b": "mse"}, ["a", "b"], tf.keras)
    assert [(metric.name, metric.output) for metric in found] == [("a_mae", 0), ("b_mse", 1)]


def test_unknown_metric_is_refused():
    with pytest.raises(ConfigError, match=r"task.metrics \(acuracy\) is no metric of Keras"):
        metrics_of("task.metrics", ["acuracy"], ["output_1"], tf.keras)
