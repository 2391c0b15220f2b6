"""Classification with the share of each class as the label, as mixup makes it."""

import numpy as np
import tensorflow as tf

from trainer.tasks.classification import _cross_entropy

LOGITS = tf.constant([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0]])


def test_one_hot_shares_are_the_label_itself() -> None:
    hard, numbers = _cross_entropy(tf.constant([2, 1]), LOGITS)
    soft, largest = _cross_entropy(tf.one_hot([2, 1], 3), LOGITS)
    np.testing.assert_allclose(soft, hard, rtol=1e-6)
    assert numbers.numpy().tolist() == largest.numpy().tolist() == [2, 1]


def test_loss_is_the_mean_over_the_shares_and_the_class_that_of_the_largest() -> None:
    shares = tf.constant([[0.25, 0.75, 0.0], [0.6, 0.0, 0.4]])
    losses, largest = _cross_entropy(shares, LOGITS)
    expected = -np.sum(shares * tf.nn.log_softmax(LOGITS), axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert largest.numpy().tolist() == [1, 0]


def test_further_outputs_of_a_model_have_no_share() -> None:
    losses, largest = _cross_entropy(tf.constant([[0.5, 0.5], [0.0, 1.0]]), LOGITS)
    expected, _ = _cross_entropy(tf.constant([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]), LOGITS)
    np.testing.assert_array_equal(losses, expected)
    assert largest.numpy().tolist() == [0, 1]
