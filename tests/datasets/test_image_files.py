"""Folders of images, with classes or masks: layouts, framing, and masks that augmentation moves."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy_sources import everything
from trainer.datasets.image_folder import image_folder
from trainer.datasets.image_masks import image_masks
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit

SIZE = [4, 6]
NAMES = ["ground", "thing"]


def write(path, pixels):
    """Write pixels, or an image of one color; losslessly for .png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, int):
        pixels = np.full((8, 12, 3), pixels, np.uint8)
    encode = tf.io.encode_png if path.suffix.lower() == ".png" else tf.io.encode_jpeg
    path.write_bytes(encode(pixels).numpy())
    return path


@pytest.fixture
def tree(tmp_path):
    """Two classes, train/ and test/, with files of several names and kinds."""
    for number in range(2):
        write(tmp_path / "data/train/cat" / f"{number}.png", number)
        write(tmp_path / "data/train/ant" / f"{number}.jpg", 100 + number)
        write(tmp_path / "data/test/cat" / f"{number}.JPEG", 200 + number)
    return tmp_path / "data"


def test_classes_are_folders_and_images_have_one_size(tree):
    data = image_folder(path=str(tree), image_size=SIZE)
    assert (data.input_shape, data.class_names) == ((4, 6, 3), ["ant", "cat"])
    train, test = everything(data.train), everything(data.test)
    assert train["label"].tolist() == [0, 0, 1, 1]
    assert train["features"][:, 3, 5, 2].tolist() == [100, 101, 0, 1]
    assert train["features"].dtype == np.uint8
    assert (test["label"].tolist(), test["features"][:, 0, 0, 0].tolist()) == ([1, 1], [200, 201])


@pytest.mark.parametrize("antialias", [False, True])
def test_antialias_averages_pixels(tmp_path, antialias):
    image = np.zeros((8, 8, 3), np.uint8)
    image[3:5, 3:5] = 255  # what bilinear sampling sees at the center, and averaging does not
    for name in ("train", "test"):
        write(tmp_path / name / "a" / "0.png", image)
    data = image_folder(path=str(tmp_path), image_size=[1, 1], antialias=antialias)
    value = int(everything(data.train)["features"][0, 0, 0, 0])
    assert value < 63.75 if antialias else value > 127.5


def test_hidden_loose_and_other_files_are_ignored(tree, caplog):
    names = ("notes.txt", "loose.png", "cat/._0.png", "cat/labels.csv", "cat/0.webp")
    for name in (*names, "cat/more/0.png", ".cache/x.png"):
        (tree / "train" / name).parent.mkdir(exist_ok=True)
        (tree / "train" / name).write_text("x")
    assert image_folder(path=str(tree), image_size=SIZE).train.num_examples == 4
    (line,) = caplog.messages
    assert "4 images are used, 3 others are not, such as loose.png;" in line


MASK = np.zeros((8, 12, 1), np.uint8)
MASK[:, :6] = 1
MASK[:2, -2:] = 255


def masks(root, **options):
    return image_masks(path=str(root), image_size=SIZE, class_names=NAMES, **options)


def test_masks_are_resized_and_cropped_as_their_images(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / split / "images" / "a.jpg", 200)
        write(tmp_path / split / "masks" / "a.png", MASK)
    data = masks(tmp_path)
    assert (data.input_shape, data.num_classes, data.class_names) == ((4, 6, 3), 2, NAMES)
    expected = np.zeros((4, 6), np.uint8)
    expected[:, :3] = 1
    cropped = everything(masks(tmp_path, crop=0.5).train)
    np.testing.assert_array_equal(cropped["mask"], [expected])  # without the ignored corner
    expected[0, 5] = 255
    batch = everything(data.train)
    np.testing.assert_array_equal(batch["mask"], [expected])
    assert (batch["features"] == 200).all()
    files = data.files([tmp_path / "test" / "images" / "a.jpg"])
    alone = data.transform(files.fetch(tf.constant([0], tf.int64)), None)
    assert "mask" not in alone
    np.testing.assert_allclose(alone["features"], 200 / 255, atol=0.01)


def test_flip_and_crop_move_a_mask_with_its_image():
    random = np.random.default_rng(0)
    classes = random.integers(1, 200, [12, 6, 7]).astype(np.uint8)
    split = ArraySplit(classes[..., None], None)
    split.arrays["mask"] = classes
    data = ImageDataset(
        train=split,
        test=split,
        image_shape=(6, 7, 1),
        num_classes=255,
        has_masks=True,
        augment=Augmentation(flip=True, crop=2, brightness=0.0),
    )
    draws = tf.constant(random.uniform(size=[12, data.num_draws]).astype(np.float32))
    batch = data.transform(split.fetch(tf.range(12, dtype=tf.int64)), draws)
    moved = batch["mask"].numpy()
    inside = moved != 255
    assert not inside.all(), "no pixel came from outside"
    images = np.rint(batch["features"].numpy()[..., 0] * 255).astype(np.uint8)
    np.testing.assert_array_equal(moved[inside], images[inside])
    assert not images[~inside].any()
    assert (moved != classes).any(axis=(1, 2)).sum() >= 6
