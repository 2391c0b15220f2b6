from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit

RANDOM = np.random.RandomState(0)
SPLIT = ArraySplit(RANDOM.randint(0, 256, (8, 6, 7, 3), np.uint8), np.arange(8))
ALL = tf.range(8, dtype=tf.int64)
EVERYTHING: dict[str, Any] = {
    "image_size": [9, 8],
    "augment": Augmentation(flip=True, crop=2, brightness=0.3),
    "normalize": Normalization(mean=[0.1, 0.2, 0.3], std=[0.7, 0.8, 0.9]),
}


def dataset(**options: Any) -> ImageDataset:
    return ImageDataset(train=SPLIT, test=SPLIT, image_shape=(6, 7, 3), num_classes=8, **options)


def test_augmentations_draw_independently_of_one_another() -> None:
    draws = tf.constant(RANDOM.uniform(size=(8, 4)), tf.float32)
    batch = SPLIT.fetch(ALL)
    flipped = dataset(augment=Augmentation(flip=True)).transform(batch, draws[:, :1])
    both = dataset(augment=Augmentation(flip=True, crop=1)).transform(
        batch, tf.concat([draws[:, :1], tf.fill([8, 2], 0.5)], axis=1)
    )
    np.testing.assert_array_equal(both["features"], flipped["features"])


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
def test_examples_are_the_same_bits_in_any_part_of_the_batch(options: dict[str, Any]) -> None:
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


def test_evaluation_is_not_augmented() -> None:
    everything = dataset(**EVERYTHING)
    plain = dataset(**{**EVERYTHING, "augment": None})
    batch = SPLIT.fetch(ALL)
    evaluated = everything.transform(batch, None)["features"]
    np.testing.assert_array_equal(evaluated, plain.transform(batch, None)["features"])
    assert evaluated.shape == (8, *everything.input_shape) == (8, 9, 8, 3)


def test_transform_compiles_under_xla() -> None:
    everything = dataset(**EVERYTHING)
    draws = tf.constant(RANDOM.uniform(size=(8, everything.num_draws)), tf.float32)
    batch = SPLIT.fetch(ALL)
    compiled = tf.function(everything.transform, jit_compile=True)(batch, draws)["features"]
    np.testing.assert_allclose(compiled, everything.transform(batch, draws)["features"], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": {"magnitude": 9.0}}, r"magnitude \(9.0\) is .*augment.randaugment=2"),
        ({"augment": {"randaugment": 2}}, r"magnitude \(0.0\) must be > 0 and <= 10"),
        ({"image_size": [9]}, r"image_size \(\[9\]\) must be \[height, width\], both at least 1"),
        ({"image_size": [9, 0]}, r"image_size \(\[9, 0\]\) must be"),
        ({"augment": {"crop": 6}}, r"augment\.crop \(6\) must be less.*shorter side, 6"),
        ({"augment": {"crop": 4}, "image_size": [4, 9]}, r"augment\.crop \(4\).*side, 4"),
        ({"normalize": Normalization(mean=[0.1, 0.2])}, r"normalize\.mean.*for each of the 3 ch"),
        ({"normalize": Normalization(std=[])}, r"normalize\.std \(\[\]\) must have one number"),
        ({"normalize": Normalization(std=[0.5, 0.0, 0.5])}, r"normalize\.std.*must be positive"),
    ],
)
def test_image_dataset_refuses_impossible_options(options: dict[str, Any], message: str) -> None:
    augment = options.get("augment")
    with pytest.raises(ValueError, match=message):
        dataset(**{**options, "augment": augment and Augmentation(**augment)})


def test_color_is_refused_for_gray_images() -> None:
    with pytest.raises(ValueError, match=r"augment\.hue \(0\.1\) needs images of 3 channels"):
        Augmentation(hue=0.1).check((8, 8, 1))


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif"])
@pytest.mark.parametrize(("mode", "shape"), [("L", (8, 9, 3)), ("RGB", (8, 9, 1))])
def test_image_files_of_every_format_are_decoded(
    tmp_path: Path, suffix: str, mode: str, shape: tuple[int, int, int]
) -> None:
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
