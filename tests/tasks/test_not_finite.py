"""What a diverged model predicts is wrong, whatever the label is."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.tasks.classification import Classification
from trainer.tasks.language_model import LanguageModel
from trainer.tasks.multilabel import Multilabel
from trainer.tasks.segmentation import Segmentation

BAD = pytest.mark.parametrize("bad", [np.nan, np.inf])


def metrics(task, outputs, **batch):
    """Return the metrics of a task whose model returns `outputs`, [B, ..., 2]."""
    shape = outputs.shape[1:]
    parts = SimpleNamespace(
        num_classes=shape[-1],
        num_outputs=shape[-1],
        input_shape=shape[:-1],
        model=lambda: lambda x, training: tf.constant(outputs, tf.float32),
        optimizer=lambda: None,
    )
    task.build(parts)
    _, values = task.eval_step({"features": tf.zeros([len(outputs)]), **batch})
    return values


@BAD
@pytest.mark.parametrize("label", [[0, 0], [[1.0, 0.0], [1.0, 0.0]]], ids=["class", "shares"])
def test_classification(bad, label):
    found = metrics(Classification(), np.array([[bad, bad], [2.0, 1.0]]), label=tf.constant(label))
    assert found["accuracy"].numpy().tolist() == [0.0, 1.0]


@BAD
def test_multilabel(bad):
    outputs = np.array([[-bad, -bad], [-1.0, -1.0]])
    found = metrics(Multilabel(), outputs, label=tf.zeros([2, 2], tf.int64))
    assert found["accuracy"].numpy().tolist() == [0.0, 1.0]


@BAD
def test_language_model(bad):
    outputs = np.array([[[bad, bad], [2.0, 1.0]]])
    found = metrics(LanguageModel(), outputs, label=tf.zeros([1, 2], tf.int64))
    assert found["accuracy"].numpy().tolist() == [0.5]


@BAD
def test_segmentation(bad):
    outputs = np.array([[[[bad, bad], [2.0, 1.0]]]])
    found = metrics(Segmentation(), outputs, mask=tf.zeros([1, 1, 2], tf.uint8))
    assert [x.numpy().tolist() for x in found["accuracy"]] == [[1.0], [2.0]]
    assert [x.numpy().tolist() for x in found["iou/0"]] == [[1.0], [2.0]]
