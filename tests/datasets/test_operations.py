"""The changes of augmentation and mixing, against formulas and Pillow."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageFilter, ImageOps

from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations import augment, color, mixing, random_operations
from trainer.datasets.operations.random_operations import OPERATIONS

IMAGES = np.random.RandomState(0).uniform(size=(6, 5, 7, 3)).astype(np.float32)
DRAWS = np.random.RandomState(1).uniform(size=(6, 4)).astype(np.float32)


def draws(column, *values):
    rows = np.full((len(values), 4), 0.5, np.float32)
    rows[:, column] = values
    return tf.constant(rows)


def test_flip_mirrors_below_one_half():
    flipped = augment.flip(tf.constant(IMAGES[:3]), draws(augment.FLIP_COLUMN, 0.0, 0.49, 0.5))
    np.testing.assert_array_equal(flipped[:2], IMAGES[:2, :, ::-1])
    np.testing.assert_array_equal(flipped[2], IMAGES[2])


@pytest.mark.parametrize("margin", [1, 2])
def test_crop_is_the_window_of_the_padded_image(margin):
    numbers = DRAWS.copy()
    numbers[0], numbers[1] = 0.0, np.nextafter(np.float32(1), np.float32(0))  # the last offsets
    cropped = augment.crop(tf.constant(IMAGES), tf.constant(numbers), margin)
    padded = np.pad(IMAGES, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
    offsets = (numbers[:, 1:3] * (2 * margin + 1)).astype(int)
    assert offsets[:2].tolist() == [[0, 0], [2 * margin, 2 * margin]]
    for image, pad, (down, across) in zip(cropped, padded, offsets, strict=True):
        np.testing.assert_array_equal(image, pad[down : down + 5, across : across + 7])


def test_brightness_adds_and_clips():
    image = np.full((3, 1, 1, 1), 0.9, np.float32)
    changed = augment.Augmentation(brightness=0.5).apply(
        tf.constant(image), draws(augment.BRIGHTNESS_COLUMN, 0.0, 0.5, 0.99)
    )
    np.testing.assert_allclose(np.squeeze(changed), [0.4, 0.9, 1.0], rtol=1e-6)


@pytest.mark.parametrize(("mean", "std"), [([0.1, 0.2, 0.3], [1.0, 2.0, 4.0]), ([0.5], [0.5])])
def test_normalization_is_per_channel_or_for_all(mean, std):
    found = Normalization(mean=mean, std=std).apply(tf.constant(IMAGES))
    np.testing.assert_allclose(found, (IMAGES - mean) / std, rtol=1e-5, atol=1e-6)


GRAY = np.array([0.299, 0.587, 0.114], np.float32)
FACTORS = np.repeat([0.0, 1.0, 1.5], 2)


@pytest.mark.parametrize("channels", [3, 1])
def test_saturation_and_contrast_move_pixels_away_from_gray(channels):
    images = IMAGES[..., :channels]
    gray = (images @ GRAY)[..., None] if channels == 3 else images
    mean = np.round(gray * 255).mean(axis=(1, 2), keepdims=True) / 255
    factors = FACTORS[:, None, None, None]
    amounts = tf.constant(FACTORS, tf.float32)
    expected = np.clip(mean + factors * (images - mean), 0, 1)
    np.testing.assert_allclose(color.contrast(images, amounts), expected, atol=1e-6)
    if channels == 3:
        expected = np.clip(gray + factors * (images - gray), 0, 1)
        np.testing.assert_allclose(color.saturation(images, amounts), expected, atol=1e-6)


def test_hue_turns_the_circle():
    turns = (0.0, 0.25, -0.5)
    turned = color.hue(IMAGES[:3], tf.constant(turns)).numpy()
    for image, result, turn in zip(IMAGES, turned, turns, strict=False):
        for pixel, found in zip(image.reshape(-1, 3), result.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
            np.testing.assert_allclose(found, expected, atol=1e-5)


SQUARES = np.random.RandomState(0).randint(30, 200, (2, 9, 9, 3)).astype(np.uint8)
COLORS = (SQUARES / 255).astype(np.float32)


def operate(name, magnitude=5.0, negative=False):
    choice = tf.fill([2], OPERATIONS.index(name))
    result = random_operations.operate(
        tf.constant(COLORS), choice, tf.fill([2], negative), magnitude
    )
    assert result.shape == COLORS.shape
    return np.asarray(result)


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
def test_point_operation_is_that_of_pil(name, function, tolerance):
    expected = np.stack([np.array(function(Image.fromarray(image))) for image in SQUARES]) / 255
    np.testing.assert_allclose(operate(name), expected, atol=(tolerance + 0.01) / 255)


def test_sharpness_moves_away_from_the_smoothed_image():
    images = [Image.fromarray(image).filter(ImageFilter.SMOOTH) for image in SQUARES]
    smooth = np.stack(list(map(np.array, images))) / 255
    for negative, factor in ((False, 1.45), (True, 0.55)):
        expected = np.clip(smooth + factor * (COLORS - smooth), 0, 1)
        np.testing.assert_allclose(operate("sharpness", negative=negative), expected, atol=2 / 255)


def test_translation_shifts_whole_pixels_and_fills_with_gray():
    magnitude = 10 * 2 / (0.45 * 9)  # two pixels of nine
    moved = operate("translate_x", magnitude)
    np.testing.assert_allclose(moved[:, :, :7], COLORS[:, :, 2:], atol=1e-5)
    np.testing.assert_allclose(moved[:, :, 7:], 0.5)
    moved = operate("translate_y", magnitude, negative=True)
    np.testing.assert_allclose(moved[:, 2:], COLORS[:, :7], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("rotate", np.s_[:, 4, 4]),
        ("shear_x", np.s_[:, 4]),
        ("shear_y", np.s_[:, :, 4]),
    ],
)
def test_rotation_leaves_the_middle_and_shear_its_line(name, same):
    moved = operate(name, 10.0)
    np.testing.assert_allclose(moved[same], COLORS[same], atol=1e-5)
    assert not np.allclose(moved[:, 3, 6], COLORS[:, 3, 6])


def test_every_operation_is_drawn():
    count = len(OPERATIONS)
    images = np.repeat(COLORS[:1], count, axis=0)
    numbers = np.stack([(np.arange(count) + 0.5) / count, np.zeros(count)], axis=1)
    together = random_operations.rand_augment(
        tf.constant(images), tf.constant(numbers, tf.float32), magnitude=9.0
    )
    for number, name in enumerate(OPERATIONS):
        alone = random_operations.operate(
            tf.constant(images[:1]), tf.constant([number]), tf.constant([True]), 9.0
        )
        np.testing.assert_array_equal(together[number], alone[0], err_msg=name)


LABELS = np.array([0, 2, 1, 1])
PAIRS = np.random.RandomState(0).uniform(size=(4, 6, 8, 1)).astype(np.float32)
OTHER = [1, 0, 3, 2]


def mix(mixup, cutmix, weight=None, **columns):
    """Return mixed images and labels; draws are 0.5 but in some columns."""
    names = ("which", "share", "side", "down", "across")
    numbers = tf.constant([[columns.get(name, 0.5) for name in names]] * 4, tf.float32)
    batch = {"features": tf.constant(PAIRS), "label": tf.constant(LABELS)}
    if weight is not None:
        batch["weight"] = tf.constant(weight)
    mixed = mixing.Mixing(mixup, cutmix).apply(batch, numbers, 3)
    return mixed["features"].numpy(), mixed["label"].numpy()


def test_mixup_blends_neighbors_and_their_labels():
    # Beta(1, 1) is uniform: draw 0.5 below one half is 0.25.
    images, labels = mix(1.0, 0.0, side=0.0)
    np.testing.assert_allclose(images, 0.75 * PAIRS + 0.25 * PAIRS[OTHER], atol=1e-6)
    expected = [[0.75, 0, 0.25], [0.25, 0, 0.75], [0, 1, 0], [0, 1, 0]]
    np.testing.assert_allclose(labels, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "box"),
    [
        # A quarter, half of each side, 3 x 4 of 6 x 8: half a pixel is rounded to even.
        ({}, np.s_[2:4, 2:6]),
        ({"down": 0.0, "across": 0.0}, np.s_[0:2, 0:2]),
    ],
)
def test_cutmix_pastes_a_box_of_the_neighbor_and_counts_what_is_inside(columns, box):
    images, labels = mix(0.0, 1.0, side=0.0, **columns)
    expected = PAIRS.copy()
    expected[(slice(None), *box)] = PAIRS[OTHER][(slice(None), *box)]
    np.testing.assert_array_equal(images, expected)
    share = PAIRS[0][box].size / 48
    np.testing.assert_allclose(labels[0], [1 - share, 0, share], atol=1e-6)


def test_both_are_drawn_for_half_of_the_examples():
    for which, alone in ((0.1, (0.0, 1.0)), (0.9, (1.0, 0.0))):
        for one, two in zip(mix(1.0, 1.0, which=which), mix(*alone, which=which), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("options", [(1.0, 0.0), (0.0, 1.0)])
def test_example_without_weight_is_not_mixed_in(options):
    images, labels = mix(*options, weight=[1.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(images[0], PAIRS[0])
    np.testing.assert_array_equal(labels[0], [1, 0, 0])
    assert not np.array_equal(images[2], PAIRS[2])


@pytest.mark.parametrize("parameter", [0.2, 1.0, 2.0])
def test_beta_has_the_moments_of_the_distribution(parameter):
    numbers = np.random.RandomState(0).uniform(size=(2, 200_000))
    sample = mixing.beta(*tf.constant(numbers, tf.float32), parameter).numpy().astype(np.float64)
    assert abs(sample.mean() - 0.5) < 0.005
    assert abs(sample.var() - 1 / (4 * (2 * parameter + 1))) < 0.002
    assert 0 <= sample.min() <= sample.max() <= 1
