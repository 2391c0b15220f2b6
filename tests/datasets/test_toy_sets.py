"""The datasets that need no files: they keep the contract, and are always the same."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset, check_split
from trainer.datasets.colored_digits import colored_digits
from trainer.datasets.digits import digits, read_digits
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.sentences import sentences
from trainer.datasets.shapes import shapes
from trainer.datasets.splits.arrays import ArraySplit
from trainer.datasets.synthetic import synthetic

FEW = {"num_examples": 30, "num_test": 8}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (digits, {}),
        (colored_digits, {"augment": Augmentation(two_views=True, crop=1, hue=0.2)}),
        (
            synthetic,
            {"augment": Augmentation(min_area=0.5, flip=True, crop=2, brightness=0.1), **FEW},
        ),
        (shapes, {"augment": Augmentation(flip=True, crop=2), "image_size": [16, 16], **FEW}),
        (sentences, {"characters": 2000}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_toy_set_keeps_the_contract(make: Any, options: dict[str, Any]) -> None:
    check_dataset(make(**options))


class _Counting(ArraySplit):
    """Breaks the contract: what it returns depends on how often it was called."""

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        noise = tf.random.uniform(tf.shape(indices))
        return {**super().fetch(indices), "features": noise}


def test_contract_finds_a_split_that_does_not_repeat() -> None:
    with pytest.raises(AssertionError, match="a second time: features has other bits"):
        check_split(_Counting(np.zeros([5, 2]), np.zeros(5)))


def fetch(split: Any, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    batch = split.fetch(tf.range(count or split.num_examples, dtype=tf.int64))
    return batch["features"].numpy(), batch["label"].numpy()


def test_digits_contain_every_image_once() -> None:
    data = digits()
    assert (data.train.num_examples, data.test.num_examples) == (1437, 360)
    images, labels = map(np.concatenate, zip(fetch(data.train), fetch(data.test), strict=True))
    assert images.shape == (1797, 8, 8, 1)
    assert (images.dtype, images.max(), int(images.sum())) == (np.uint8, 16, 561718)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_colors_follow_from_the_seed_and_labels_stay() -> None:
    (first, labels), (same, _), (other, _) = (
        fetch(colored_digits(seed=seed).train, 50) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(labels, read_digits()[0][1][:50])


def test_without_noise_a_pixel_is_between_two_colors() -> None:
    images, _ = fetch(colored_digits(noise=0.0).test, 20)
    for image, digit in zip(images, read_digits()[1][0][:20], strict=True):
        ground = image[digit[..., 0] == 0]
        assert (ground == ground[0]).all()


def test_same_seed_makes_the_same_images() -> None:
    first, again, other = (
        fetch(synthetic(num_examples=20, seed=seed).train)[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_synthetic_classes_are_separable() -> None:
    data = synthetic(num_examples=500, num_test=100)
    (images, labels), (tests, answers) = fetch(data.train), fetch(data.test)
    means = np.stack([images[labels == label].mean(0) for label in range(10)])
    nearest = np.square(tests[:, None].astype(np.float32) - means).sum((2, 3, 4)).argmin(1)
    assert (nearest == answers).mean() == 1.0
    assert (tests[0] != images[0]).any()
