import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations import augment
from trainer.datasets.splits.arrays import ArraySplit

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


def test_brightness_adds_and_clips() -> None:
    image = np.full((3, 1, 1, 1), 0.9, np.float32)
    changed = augment.Augmentation(brightness=0.5).apply(
        tf.constant(image), draws(augment.BRIGHTNESS_COLUMN, 0.0, 0.5, 0.99)
    )
    np.testing.assert_allclose(np.squeeze(changed), [0.4, 0.9, 1.0], rtol=1e-6)


def test_normalization_is_per_channel_or_for_all() -> None:
    per_channel = Normalization(mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 4.0])
    np.testing.assert_allclose(
        per_channel.apply(tf.constant(IMAGES)),
        (IMAGES - [0.1, 0.2, 0.3]) / [1.0, 2.0, 4.0],
        rtol=1e-5,
        atol=1e-7,
    )
    for_all = Normalization(mean=[0.5], std=[0.5])
    np.testing.assert_allclose(
        for_all.apply(tf.constant(IMAGES)), IMAGES * 2 - 1, rtol=1e-5, atol=1e-6
    )


def test_two_views_are_what_two_draws_make_and_differ() -> None:
    options = {"flip": True, "crop": 1, "brightness": 0.2}
    one = augment.Augmentation(**options)
    two = augment.Augmentation(**options, two_views=True)
    assert two.num_draws == 2 * one.num_draws
    assert augment.Augmentation(min_area=0.2).min_area == 0.2
    assert augment.Augmentation(min_area=0.2, two_views=True).min_area == 0.0, "a file is cut once"
    split = ArraySplit(IMAGES, None)
    data = [
        ImageDataset(
            train=split, test=split, image_shape=(5, 7, 3), num_classes=1, max_value=1.0, augment=a
        )
        for a in (one, two)
    ]
    columns = np.random.RandomState(2).uniform(size=(6, two.num_draws)).astype(np.float32)
    batch = {"features": tf.constant(IMAGES)}
    views = data[1].transform(batch, tf.constant(columns))
    for number, half in enumerate(np.split(columns, 2, axis=1)):
        alone = data[0].transform(batch, tf.constant(half))["features"]
        np.testing.assert_array_equal(views["views"][:, number], alone)
    np.testing.assert_array_equal(views["features"], views["views"][:, 0])
    assert (views["views"][:, 0] != views["views"][:, 1]).numpy().any()
    assert "views" not in data[1].transform(batch, None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({}, "needs a random change"), ({"mixup": 0.2}, "cannot be used with mixup or cutmix")],
)
def test_views_that_make_no_sense_are_refused(options: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        augment.Augmentation(two_views=True, **options)
