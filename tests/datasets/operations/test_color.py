import colorsys

import numpy as np
import tensorflow as tf

from trainer.datasets.operations import color

IMAGES = np.random.RandomState(0).uniform(size=(3, 4, 5, 3)).astype(np.float32)
GRAY = np.array([0.299, 0.587, 0.114], np.float32)
FACTORS = tf.constant([0.0, 1.0, 1.5])


def test_saturation_moves_pixels_away_from_their_gray() -> None:
    gray = (IMAGES @ GRAY)[..., None]
    expected = np.clip(gray + np.array([0, 1, 1.5])[:, None, None, None] * (IMAGES - gray), 0, 1)
    np.testing.assert_allclose(color.saturation(IMAGES, FACTORS), expected, atol=1e-6)


def test_contrast_moves_pixels_away_from_the_mean_gray() -> None:
    mean = np.round((IMAGES @ GRAY) * 255).mean(axis=(1, 2))[:, None, None, None] / 255
    expected = np.clip(mean + np.array([0, 1, 1.5])[:, None, None, None] * (IMAGES - mean), 0, 1)
    np.testing.assert_allclose(color.contrast(IMAGES, FACTORS), expected, atol=1e-6)


def test_contrast_of_gray_images_uses_their_channel() -> None:
    images = IMAGES[..., :1]
    mean = np.round(images * 255).mean(axis=(1, 2), keepdims=True) / 255
    changed = color.contrast(images, tf.zeros([3]))
    np.testing.assert_allclose(changed, np.broadcast_to(mean, images.shape), atol=1e-6)


def test_hue_turns_the_circle() -> None:
    turned = color.hue(IMAGES, tf.constant([0.0, 0.25, -0.5])).numpy()
    for image, result, turn in zip(IMAGES, turned, (0.0, 0.25, -0.5), strict=True):
        for pixel, found in zip(image.reshape(-1, 3), result.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
            np.testing.assert_allclose(found, expected, atol=1e-5)
