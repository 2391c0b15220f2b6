"""Images with masks: in files, and moved by augmentation."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.dataset_contract import arrays
from trainer.datasets.image_masks import image_masks
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.shapes import shapes
from trainer.datasets.splits.arrays import ArraySplit

NAMES = ["ground", "thing"]
OPTIONS = {"class_names": NAMES, "image_size": [4, 6]}


def write(root, name, value, *, size=(8, 12), suffix=".png"):
    """Write an image of one color, and a mask: its left half is class 1, one pixel 255."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    image = np.full((*size, 3), value, np.uint8)
    Image.fromarray(image).save(root / "images" / f"{name}{suffix}")
    mask = np.zeros(size, np.uint8)
    mask[:, : size[1] // 2] = 1
    mask[: size[0] // 4, -size[1] // 6 :] = 255
    Image.fromarray(mask).save(root / "masks" / f"{name}.png")


@pytest.fixture
def tree(tmp_path):
    for number in range(4):
        write(tmp_path / "train", f"{number}", 10 * number)
    write(tmp_path / "test", "a", 200, suffix=".jpg")
    return tmp_path


def test_pairs_are_read_and_resized_alike(tree):
    data = image_masks(path=str(tree), **OPTIONS)
    assert (data.input_shape, data.num_classes, data.class_names) == ((4, 6, 3), 2, NAMES)
    batch = arrays(data.train, [2, 0])
    assert batch["features"][:, 0, 0, 0].tolist() == [20, 0]
    expected = np.zeros((4, 6), np.uint8)
    expected[:, :3] = 1
    expected[0, 5] = 255
    np.testing.assert_array_equal(batch["mask"], [expected, expected])
    assert arrays(data.test, [0])["features"][0, 0, 0, 0] == 200


def palette(path):
    Image.open(path).convert("P").save(path)


def other_size(path):
    Image.fromarray(np.zeros((12, 8), np.uint8)).save(path)


def unknown_class(path):
    Image.fromarray(np.full((8, 12), 2, np.uint8)).save(path)


def one_bit(path):
    Image.fromarray(np.zeros((8, 12), np.uint8)).convert("1").save(path)


@pytest.mark.slow
def test_mask_that_is_none_is_an_error_or_skipped_with_weight_0(tree, caplog):
    write(tree / "train", "whole", 50)
    for number, damage in enumerate((palette, other_size, unknown_class, one_bit)):
        damage(tree / "train" / "masks" / f"{number}.png")
    strict = image_masks(path=str(tree), **OPTIONS).train
    for number in range(4):
        message = rf"cannot read .*{number}.png with its mask: .*count from 1"
        with pytest.raises(ValueError, match=message):
            strict.fetch(tf.constant([4, number], tf.int64))
    rows = tf.range(5, dtype=tf.int64)
    with caplog.at_level(logging.WARNING):
        batch = image_masks(path=str(tree), max_corrupt_records=4, **OPTIONS).train.fetch(rows)
    assert batch["weight"].numpy().tolist() == [0, 0, 0, 0, 1]
    assert not batch["features"][:4].numpy().any()
    assert "4 of at most 4" in caplog.text


def test_what_is_missing_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        image_masks(path=str(tmp_path / "none"), **OPTIONS)
    with pytest.raises(ValueError, match=r"has no images/"):
        image_masks(path=str(tmp_path), **OPTIONS)
    write(tmp_path, "a", 1)
    with pytest.raises(ValueError, match=r"class_names \(null\) must name the 1 to 255 classes"):
        image_masks(path=str(tmp_path))
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(ValueError, match=r"1 of 1 images have no mask, the first one is .*a.png"):
        image_masks(path=str(tmp_path), **OPTIONS)


def test_images_of_a_folder_are_read_without_masks(tree):
    data = image_masks(path=str(tree), **OPTIONS)
    files = data.files([tree / "test" / "images" / "a.jpg"])
    batch = data.transform(files.fetch(tf.constant([0], tf.int64)), None)
    assert "mask" not in batch
    np.testing.assert_allclose(batch["features"][0, 0, 0], [200 / 255] * 3, atol=0.01)


SHAPES = {"num_examples": 30, "num_test": 8, "image_size": [16, 16]}


def test_flip_and_crop_move_a_mask_with_its_image():
    random = np.random.default_rng(0)
    masks = random.integers(1, 200, [12, 6, 7]).astype(np.uint8)
    split = ArraySplit(masks[..., None], None)
    split.arrays["mask"] = masks
    augment = Augmentation(flip=True, crop=2, brightness=0.0)
    data = ImageDataset(
        train=split,
        test=split,
        image_shape=(6, 7, 1),
        num_classes=255,
        has_masks=True,
        augment=augment,
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
    data = shapes(**SHAPES, augment=Augmentation(brightness=0.5, hue=0.2))
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
        shapes(**SHAPES, augment=Augmentation(**options))
