import numpy as np
import pytest

from trainer.datasets.arrays import ArrayDataset, ArraySplit
from trainer.datasets.digits import digits
from trainer.errors import ConfigError
from trainer.mistakes import Mistakes, fetched
from trainer.pictures import captioned

NAMES = [str(number) for number in range(10)]


def probabilities(rows):
    found = np.zeros((len(rows), 10), np.float32)
    for row, (predicted, surest) in enumerate(rows):
        found[row] = (1 - surest) / 9
        found[row, predicted] = surest
    return found


def test_the_surest_mistakes_are_shown_first():
    dataset = digits()
    everything = dataset.test.fetch(np.arange(6))
    labels = everything["label"].numpy()
    wrong = (labels + 1) % 10
    mistakes = Mistakes(3, dataset, NAMES)
    surest = [0.5, 0.9, 0.7, 0.9, 0.99, 0.6]
    predicted = [*wrong[:4], labels[4], wrong[5]]
    found = probabilities(list(zip(predicted, surest, strict=True)))
    for part in (slice(0, 2), slice(2, 6)):
        mistakes.update(np.arange(6)[part], labels[part], found[part])
    pixels = np.rint(everything["features"].numpy() * (255 / 16)).astype(np.uint8)
    captions = [f"{labels[row]} -> {wrong[row]} ({surest[row]:.2f})" for row in (1, 3, 2)]
    np.testing.assert_array_equal(mistakes.images(), captioned(pixels[[1, 3, 2]], captions))
    mistakes.reset()
    assert len(mistakes.images()) == 0


def test_what_is_no_image_is_refused():
    split = ArraySplit(np.zeros((4, 5), np.float32), np.zeros(4))
    with pytest.raises(ConfigError) as caught:
        Mistakes(3, ArrayDataset(train=split, test=split, input_shape=(5,), num_classes=2), NAMES)
    assert caught.value.problems == (
        "summary.mistakes (3) needs images, features of [height, width, 1 or 3]; the dataset has [5]; add summary.mistakes=0",
    )


def test_what_a_split_has_is_known_without_reading_it():
    found = fetched(digits())
    assert {name: (list(spec.shape), spec.dtype.name) for name, spec in found.items()} == {
        "features": ([None, 8, 8, 1], "uint8"),
        "label": ([None], "int64"),
    }
