"""Predicted classes, and images of misclassified examples."""

import numpy as np
import pytest

from trainer.datasets.digits import digits
from trainer.datasets.splits.arrays import ArrayDataset, ArraySplit
from trainer.engine.evaluation.misclassified import MisclassifiedExamples, predicted_classes
from trainer.errors import ConfigError
from trainer.summaries.figures import add_captions

NAMES = [str(number) for number in range(10)]


def probabilities(rows):
    """Return [B, 10] probabilities of rows of (predicted class, its probability)."""
    values = np.zeros((len(rows), 10), np.float32)
    for row, (predicted, probability) in enumerate(rows):
        values[row] = (1 - probability) / 9
        values[row, predicted] = probability
    return values


def test_images_show_most_probable_errors_first():
    dataset = digits()
    batch = dataset.test.fetch(np.arange(6))
    labels = batch["label"].numpy()
    wrong = (labels + 1) % 10
    misclassified = MisclassifiedExamples(3, dataset, NAMES)
    highest = [0.5, 0.9, 0.7, 0.9, 0.99, 0.6]
    predicted = [*wrong[:4], labels[4], wrong[5]]
    values = probabilities(list(zip(predicted, highest, strict=True)))
    for part in (slice(0, 2), slice(2, 6)):
        misclassified.update(np.arange(6)[part], labels[part], values[part])
    pixels = np.rint(batch["features"].numpy() * (255 / 16)).astype(np.uint8)
    captions = [f"{labels[row]} -> {wrong[row]} ({highest[row]:.2f})" for row in (1, 3, 2)]
    np.testing.assert_array_equal(misclassified.images(), add_captions(pixels[[1, 3, 2]], captions))
    misclassified.reset()
    assert len(misclassified.images()) == 0


def test_features_that_are_not_images_are_refused():
    split = ArraySplit(np.zeros((4, 5), np.float32), np.zeros(4))
    dataset = ArrayDataset(train=split, test=split, input_shape=(5,), num_classes=2)
    with pytest.raises(ConfigError) as caught:
        MisclassifiedExamples(3, dataset, NAMES)
    assert caught.value.problems == (
        "summary.misclassified (3) needs images, features of [height, width, 1 or 3]; "
        "the dataset has [5]; add summary.misclassified=0",
    )


def test_probabilities_that_are_not_finite_predict_no_class():
    rows = [[0.1, 0.9], [np.nan, np.nan], [np.nan, 0.5], [np.inf, 0.0], [1.0, 0.0]]
    assert predicted_classes(np.array(rows, np.float32)).tolist() == [1, -1, -1, -1, 0]
