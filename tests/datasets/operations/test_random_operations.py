import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageFilter, ImageOps

from trainer.datasets.operations import random_operations
from trainer.datasets.operations.random_operations import OPERATIONS

BYTES = np.random.RandomState(0).randint(30, 200, (2, 9, 9, 3)).astype(np.uint8)
IMAGES = (BYTES / 255).astype(np.float32)


def operate(name: str, magnitude: float = 5.0, negative: bool = False) -> np.ndarray:
    choice = tf.fill([2], OPERATIONS.index(name))
    result = random_operations.operate(
        tf.constant(IMAGES), choice, tf.fill([2], negative), magnitude
    )
    assert result.shape == IMAGES.shape
    return result.numpy()


def pil(function) -> np.ndarray:
    return np.stack([np.array(function(Image.fromarray(image))) for image in BYTES]) / 255


@pytest.mark.parametrize(
    ("name", "function", "tolerance"),
    [
        ("identity", lambda image: image, 0.0),
        ("equalize", ImageOps.equalize, 0.0),
        ("autocontrast", ImageOps.autocontrast, 1.01),  # PIL rounds its table down
        ("posterize", lambda image: ImageOps.posterize(image, 6), 0.0),
        ("solarize", lambda image: ImageOps.solarize(image, 128), 0.0),
    ],
)
def test_point_operation_is_that_of_pil(name: str, function, tolerance: float) -> None:
    np.testing.assert_allclose(operate(name), pil(function), atol=(tolerance + 0.01) / 255)


def test_sharpness_moves_away_from_the_smoothed_image() -> None:
    smooth = pil(lambda image: image.filter(ImageFilter.SMOOTH))
    for negative, factor in ((False, 1.45), (True, 0.55)):
        expected = np.clip(smooth + factor * (IMAGES - smooth), 0, 1)
        np.testing.assert_allclose(operate("sharpness", negative=negative), expected, atol=2 / 255)


@pytest.mark.parametrize("name", ["brightness", "contrast", "color"])
def test_blend_goes_both_ways_from_the_plain_image(name: str) -> None:
    more, less = operate(name, 1.0), operate(name, 1.0, negative=True)
    assert not np.array_equal(more, IMAGES)
    np.testing.assert_allclose(more + less, 2 * IMAGES, atol=1e-5)  # nothing is clipped here


def test_translation_shifts_whole_pixels_and_fills_with_gray() -> None:
    magnitude = 10 * 2 / (0.45 * 9)  # two pixels of nine
    moved = operate("translate_x", magnitude)
    np.testing.assert_allclose(moved[:, :, :7], IMAGES[:, :, 2:], atol=1e-5)
    np.testing.assert_allclose(moved[:, :, 7:], 0.5)
    moved = operate("translate_y", magnitude, negative=True)
    np.testing.assert_allclose(moved[:, 2:], IMAGES[:, :7], atol=1e-5)


def test_rotation_leaves_the_middle_and_turns_the_rest() -> None:
    turned = operate("rotate", 10.0)
    np.testing.assert_allclose(turned[:, 4, 4], IMAGES[:, 4, 4], atol=1e-5)
    assert not np.allclose(turned[:, 4, 6], IMAGES[:, 4, 6])


@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_shear_leaves_the_middle_line(name: str) -> None:
    sheared = operate(name, 10.0)
    line = (slice(None), 4) if name == "shear_x" else (slice(None), slice(None), 4)
    np.testing.assert_allclose(sheared[line], IMAGES[line], atol=1e-5)
    assert not np.allclose(sheared, IMAGES)


def test_every_operation_is_drawn() -> None:
    count = len(OPERATIONS)
    images = np.repeat(IMAGES[:1], count, axis=0)
    draws = np.stack([(np.arange(count) + 0.5) / count, np.zeros(count)], axis=1)
    together = random_operations.rand_augment(
        tf.constant(images), tf.constant(draws, tf.float32), magnitude=9.0
    )
    for number, name in enumerate(OPERATIONS):
        choice = tf.constant([number])
        alone = random_operations.operate(tf.constant(images[:1]), choice, tf.constant([True]), 9.0)
        np.testing.assert_array_equal(together[number], alone[0], err_msg=name)
