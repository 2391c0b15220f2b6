"""Preprocessing of images: the same in any batch, framing of files, and formats."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainer.datasets.image_folder import image_folder
from trainer.datasets.images.framing import center_box, random_box, resize_boxes
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import BOX_COLUMNS, Augmentation
from trainer.datasets.splits.arrays import ArraySplit

RANDOM = np.random.RandomState(0)
SPLIT = ArraySplit(RANDOM.randint(0, 256, (8, 6, 7, 3), np.uint8), np.arange(8))
ALL = tf.range(8, dtype=tf.int64)
EVERYTHING = {
    "image_size": [9, 8],
    "augment": Augmentation(flip=True, crop=2, brightness=0.3),
    "normalize": Normalization(mean=[0.1, 0.2, 0.3], std=[0.7, 0.8, 0.9]),
}


def dataset(**options):
    return ImageDataset(train=SPLIT, test=SPLIT, image_shape=(6, 7, 3), num_classes=8, **options)


MIXING = {"mixup": 0.2, "cutmix": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"flip": True, "crop": 2, "min_area": 0.1, "brightness": 0.3},
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"randaugment": 2, "magnitude": 9.0},
        MIXING,
    ],
    ids=lambda options: "+".join(options),
)
def test_examples_are_the_same_bits_in_any_part_of_the_batch(options):
    changed = dataset(**{**EVERYTHING, "augment": Augmentation(**options)})
    draws = tf.constant(RANDOM.uniform(size=(8, changed.num_draws)), tf.float32)
    batch = SPLIT.fetch(ALL)
    # Always in a graph, as in training: there a division by a constant becomes a multiplication.
    transform = tf.function(changed.transform, autograph=False)
    whole = transform(batch, draws)
    assert not np.array_equal(whole["features"], changed.transform(batch, None)["features"])
    pairs = [[0, 1], [2, 3, 4, 5], [6, 7]]
    for rows in pairs if options is MIXING else [[5], [7, 0, 5], [3, 5, 1, 2, 0]]:
        part = transform(SPLIT.fetch(tf.constant(rows, tf.int64)), tf.gather(draws, rows))
        for name, value in whole.items():
            np.testing.assert_array_equal(part[name], tf.gather(value, rows), err_msg=name)


def test_evaluation_is_not_augmented():
    everything = dataset(**EVERYTHING)
    plain = dataset(**{**EVERYTHING, "augment": None})
    batch = SPLIT.fetch(ALL)
    evaluated = everything.transform(batch, None)["features"]
    np.testing.assert_array_equal(evaluated, plain.transform(batch, None)["features"])
    assert evaluated.shape == (8, *everything.input_shape) == (8, 9, 8, 3)


def test_transform_compiles_under_xla():
    everything = dataset(**EVERYTHING)
    draws = tf.constant(RANDOM.uniform(size=(8, everything.num_draws)), tf.float32)
    batch = SPLIT.fetch(ALL)
    compiled = tf.function(everything.transform, jit_compile=True)(batch, draws)["features"]
    np.testing.assert_allclose(compiled, everything.transform(batch, draws)["features"], atol=1e-5)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif"])
@pytest.mark.parametrize(("mode", "shape"), [("L", (8, 9, 3)), ("RGB", (8, 9, 1))])
def test_image_files_of_every_format_are_decoded(tmp_path, suffix, mode, shape):
    color = 204 if mode == "L" else (204, 204, 204)
    Image.new(mode, (5, 4), color).save(tmp_path / f"image.{suffix}")
    small = ImageDataset(train=SPLIT, test=SPLIT, image_shape=shape, num_classes=8, max_value=16.0)
    batch = small.files([tmp_path / f"image.{suffix}"]).fetch(ALL[:1])
    assert sorted(batch) == ["features", "weight"]
    assert batch["weight"].numpy() == 1
    np.testing.assert_array_equal(
        batch["features"][0], small.decode(tf.io.read_file(str(tmp_path / f"image.{suffix}")))
    )
    np.testing.assert_allclose(
        small.transform(dict(batch), None)["features"], np.full([1, *shape], 0.8), atol=1 / 255
    )


NUMBERS = np.random.RandomState(0).uniform(size=(500, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("image", "size", "share", "box"),
    [
        ((480, 640), (224, 224), 0.875, (30, 110, 420, 420)),
        ((640, 480), (224, 224), 1.0, (80, 0, 480, 480)),
        ((100, 100), (50, 100), 1.0, (25, 0, 50, 100)),
        ((1, 1), (8, 8), 0.5, (0, 0, 1, 1)),
    ],
)
def test_center_box_has_the_proportions_of_the_result(image, size, share, box):
    found = center_box(tf.constant(image[0]), tf.constant(image[1]), size, share)
    assert tuple(map(int, found)) == box


@pytest.mark.parametrize("size", [(224, 224), (100, 300)])
def test_random_boxes_are_within_the_image_and_as_large_as_drawn(size):
    height, width = 400, 700
    boxes = random_box(tf.constant(height), tf.constant(width), size, 0.08, tf.constant(NUMBERS))
    top, left, box_height, box_width = (np.asarray(part) for part in boxes)
    assert top.min() >= 0
    assert (top + box_height).max() <= height
    assert left.min() >= 0
    assert (left + box_width).max() <= width
    whole = (box_height < height) & (box_width < width)  # not cut
    area = (0.08 + 0.92 * NUMBERS[:, 0]) * height * width
    np.testing.assert_allclose((box_height * box_width)[whole], area[whole], rtol=0.02)
    ratio = (box_width / box_height)[whole] / (size[1] / size[0])
    assert 0.74 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.35
    # Each offset that is possible is as likely as any other.
    assert abs(np.mean(top[whole] / (height - box_height[whole])) - 0.5) < 0.05


def test_boxes_are_resized_like_single_images():
    images = np.random.RandomState(1).uniform(size=(3, 9, 7, 2)).astype(np.float32)
    boxes = ([0, 2, 8], [1, 0, 6], [9, 4, 1], [5, 7, 1])
    resized = resize_boxes(tf.constant(images), tuple(tf.constant(part) for part in boxes))
    for image, result, top, left, height, width in zip(images, resized, *boxes, strict=True):
        box = image[top : top + height, left : left + width]
        np.testing.assert_allclose(result, tf.image.resize(box, [9, 7]), atol=1e-6)
    whole = ([0] * 3, [0] * 3, [9] * 3, [7] * 3)
    same = resize_boxes(tf.constant(images), tuple(tf.constant(part) for part in whole))
    np.testing.assert_array_equal(same, images)


def write_gradient(path):
    """Write an image whose pixel in row y and column x is (y, x, 0)."""
    path.parent.mkdir(parents=True)
    rows, columns = np.mgrid[0:60, 0:80]
    pixels = np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8)
    path.write_bytes(tf.io.encode_png(pixels).numpy())


def test_files_are_cut_at_random_in_training_and_in_the_middle_in_evaluation(tmp_path):
    for split in ("train", "test"):
        for label in ("a", "b"):
            write_gradient(tmp_path / split / label / "0.png")
    data = image_folder(
        path=str(tmp_path), image_size=[6, 6], crop=0.5, augment=Augmentation(min_area=0.1)
    )
    indices = tf.constant([0, 1], tf.int64)
    draws = np.zeros((2, data.num_draws), np.float32)
    draws[:, BOX_COLUMNS] = NUMBERS[:2]
    fetched = data.train.fetch(indices, tf.constant(draws))["features"].numpy()
    for features, own in zip(fetched, NUMBERS, strict=False):
        top, left, height, width = map(int, random_box(60, 80, (6, 6), 0.1, tf.constant(own)))
        # The middles of the outermost of six pixels in a box.
        corner = (top + height / 12 - 0.5, left + width / 12 - 0.5)
        np.testing.assert_allclose(features[0, 0, :2], corner, atol=0.51)
    batch = {"features": tf.constant(fetched)}
    transformed = data.transform(batch, tf.constant(draws))["features"]
    np.testing.assert_allclose(transformed, fetched / 255.0, rtol=1e-6)  # not cut a second time
    middle = data.test.fetch(indices)["features"].numpy()
    np.testing.assert_array_equal(data.train.fetch(indices)["features"], middle)
    np.testing.assert_array_equal(middle[0, :, 0, 0], [17, 22, 27, 32, 37, 42])
    np.testing.assert_array_equal(middle[0, 0, :, 1], [27, 32, 37, 42, 47, 52])
    content = tf.constant((tmp_path / "test" / "a" / "0.png").read_bytes())
    np.testing.assert_array_equal(data.decode(content), middle[0])
