"""Masks move with their images."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.dataset_contract import check_dataset
from trainer.datasets.images.masks import MaskDataset, MaskSplit
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.shapes import shapes

OPTIONS = {"num_examples": 30, "num_test": 8, "image_size": [16, 16]}


def test_flip_and_crop_move_a_mask_with_its_image():
    random = np.random.default_rng(0)
    masks = random.integers(1, 200, [12, 6, 7]).astype(np.uint8)
    split = MaskSplit(masks[..., None], masks)
    augment = Augmentation(flip=True, crop=2, brightness=0.0)
    data = MaskDataset(
        train=split, test=split, image_shape=(6, 7, 1), num_classes=255, augment=augment
    )
    draws = tf.constant(random.uniform(size=[12, data.num_draws]).astype(np.float32))
    batch = data.transform(split.fetch(tf.range(12, dtype=tf.int64)), draws)
    moved = batch["mask"].numpy()
    inside = moved != 255
    assert not inside.all(), "no pixel came from outside"
    images = np.rint(batch["features"].numpy()[..., 0] * 255).astype(np.uint8)
    np.testing.assert_array_equal(moved[inside], images[inside])
    assert not images[~inside].any()
    assert (moved != masks).any(axis=(1, 2)).sum() >= 6


def test_colors_leave_masks_alone():
    data = shapes(**OPTIONS, augment=Augmentation(brightness=0.5, hue=0.2))
    fetched = data.train.fetch(tf.range(8, dtype=tf.int64))
    draws = tf.fill([8, data.num_draws], 0.9)
    np.testing.assert_array_equal(data.transform(fetched, draws)["mask"], fetched["mask"])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"min_area": 0.5}, "min_area"),
        ({"randaugment": 1, "magnitude": 5.0}, "randaugment"),
        ({"cutmix": 1.0}, "mixup or augment.cutmix"),
        ({"two_views": True, "flip": True}, "two_views"),
    ],
)
def test_changes_that_cannot_move_masks_are_refused(options, name):
    with pytest.raises(ValueError, match=rf"augment.{name} cannot be used with masks"):
        shapes(**OPTIONS, augment=Augmentation(**options))


def test_shapes_keep_the_contract():
    check_dataset(shapes(**OPTIONS, augment=Augmentation(flip=True, crop=2)))
