"""Digits in random colors."""

import numpy as np
import tensorflow as tf

from tests.support.dataset_contract import check_dataset
from trainer.datasets.colored_digits import colored_digits
from trainer.datasets.digits import read_digits
from trainer.datasets.operations.augment import Augmentation


def test_colored_digits_keep_the_contract():
    check_dataset(colored_digits(augment=Augmentation(two_views=True, crop=1, hue=0.2)))


def test_colors_follow_from_the_seed_and_labels_stay():
    rows = tf.range(50, dtype=tf.int64)
    batch, same, other = (colored_digits(seed=seed).train.fetch(rows) for seed in (0, 0, 1))
    np.testing.assert_array_equal(batch["features"], same["features"])
    assert (batch["features"] != other["features"]).numpy().any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(batch["label"], read_digits()[0][1][:50])


def test_without_noise_a_pixel_is_between_two_colors():
    images = colored_digits(noise=0.0).test.fetch(tf.range(20, dtype=tf.int64))["features"]
    digits = read_digits()[1][0][:20]
    for image, digit in zip(images.numpy(), digits, strict=True):
        ground = image[digit[..., 0] == 0]
        assert (ground == ground[0]).all()
