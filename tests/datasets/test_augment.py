import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets import augment
from trainer.datasets.images import resize
from trainer.datasets.normalise import Normalisation

IMAGES = np.random.RandomState(0).uniform(size=(6, 5, 7, 3)).astype(np.float32)
DRAWS = np.random.RandomState(1).uniform(size=(6, 4)).astype(np.float32)


def draws(column: int, *values: float) -> tf.Tensor:
    rows = np.full((len(values), 4), 0.5, np.float32)
    rows[:, column] = values
    return tf.constant(rows)


def test_flip_mirrors_below_one_half() -> None:
    flipped = augment.flip(tf.constant(IMAGES[:3]), draws(augment.FLIP_COLUMN, 0.0, 0.49, 0.5))
    np.testing.assert_array_equal(flipped[0], IMAGES[0, :, ::-1])
    np.testing.assert_array_equal(flipped[1], IMAGES[1, :, ::-1])
    np.testing.assert_array_equal(flipped[2], IMAGES[2])


@pytest.mark.parametrize("margin", [1, 2])
def test_crop_is_the_window_of_the_padded_image(margin: int) -> None:
    cropped = augment.crop(tf.constant(IMAGES), tf.constant(DRAWS), margin)
    padded = np.pad(IMAGES, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
    for image, pad, (down, across) in zip(
        cropped, padded, (DRAWS[:, 1:3] * (2 * margin + 1)).astype(int), strict=True
    ):
        np.testing.assert_array_equal(image, pad[down : down + 5, across : across + 7])


def test_crop_reaches_every_offset_and_no_further() -> None:
    largest = np.nextafter(np.float32(1), np.float32(0))
    image = np.ones((1, 3, 3, 1), np.float32)
    low, middle, high = (
        augment.crop(tf.constant(image), draws(1, value), 1)[0, :, 1, 0].numpy()
        for value in (0.0, 0.5, largest)
    )
    assert (low.tolist(), middle.tolist(), high.tolist()) == ([0, 1, 1], [1, 1, 1], [1, 1, 0])


def test_crop_pads_with_what_it_is_told() -> None:
    fill = (0.25, 0.5, 0.75)
    left = augment.crop(tf.constant(IMAGES), tf.zeros([6, 4]), 2, fill).numpy()
    np.testing.assert_array_equal(left[:, 2:, 2:], IMAGES[:, :-2, :-2])
    np.testing.assert_array_equal(left[:, :2], np.broadcast_to(fill, (6, 2, 7, 3)))


def test_brightness_adds_and_clips() -> None:
    image = np.full((3, 1, 1, 1), 0.9, np.float32)
    changed = augment.Augmentation(brightness=0.5).apply(
        tf.constant(image), draws(augment.BRIGHTNESS_COLUMN, 0.0, 0.5, 0.99)
    )
    np.testing.assert_allclose(np.squeeze(changed), [0.4, 0.9, 1.0], rtol=1e-6)


def test_normalisation_is_per_channel_or_for_all() -> None:
    per_channel = Normalisation(mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 4.0])
    np.testing.assert_allclose(
        per_channel.apply(tf.constant(IMAGES)),
        (IMAGES - [0.1, 0.2, 0.3]) / [1.0, 2.0, 4.0],
        rtol=1e-5,
        atol=1e-7,
    )
    for_all = Normalisation(mean=[0.5], std=[0.5])
    np.testing.assert_allclose(
        for_all.apply(tf.constant(IMAGES)), IMAGES * 2 - 1, rtol=1e-5, atol=1e-6
    )


def test_resize_is_bilinear() -> None:
    enlarged = resize(tf.constant([[[[0.0], [1.0]]]]), [1, 4])
    np.testing.assert_allclose(enlarged[0, 0, :, 0], [0.0, 0.25, 0.75, 1.0], atol=1e-6)
    assert resize(tf.constant(IMAGES, tf.float32), [2, 3]).shape == (6, 2, 3, 3)
