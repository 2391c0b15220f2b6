"""A folder of images and one of masks with the same names.

`images/` and `masks/` are in it, or in `train/`, `val/` and `test/` below it. Without these
a pair belongs to it if a hash of its name falls under `test_fraction`: pairs that are added
later move no other. Files are read while training; hidden ones and other formats are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from trainer.annotations import Exists, Free, Ge, Gt, Le, Lt, Structural, takes
from trainer.datasets.image_folder import EXTENSIONS, SUFFIXES_TEXT
from trainer.datasets.images.image_files import FileSplit, decode
from trainer.datasets.images.images import IGNORED, ImageDataset, ImageOptions, decoded_shape
from trainer.datasets.splits.paths import (
    Paths,
    divided,
    files_identity,
    find_splits,
    hash_files,
    visible_files,
)

_LAYOUT = "it must hold images/<name>.jpg or .png and masks/<name>.png, or both in train/ and test/"
_GRAY_OF_8_BITS = b"\x08\x00"
"""Bytes 24 and 25 of a PNG file: the bits of a number, and that pixels are gray numbers."""


@takes(ImageOptions)
def image_masks(
    options: ImageOptions,
    *,
    path: Annotated[str | None, Exists("directory"), Free(names_run=True)] = None,
    class_names: list[str] | None = None,
    image_size: Annotated[list[Annotated[int, Ge(1)]], Structural()] = [224, 224],  # noqa: B006 - never changed
    channels: Annotated[int, Ge(1), Le(3), Structural()] = 3,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
) -> ImageDataset:
    """Images with masks: `<path>/images/<name>.jpg` or .png and `<path>/masks/<name>.png`.

    A mask is a gray PNG of 8 bits, of the size of its image: the number of the class of each pixel,
    or 255, which does not count.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder has no such files, or an option is wrong.
    """
    shape = decoded_shape(image_size, channels)
    if not class_names or len(class_names) > IGNORED:
        raise ValueError(
            f"class_names ({'null' if class_names is None else len(class_names)}) must name the 1 "
            f"to {IGNORED} classes of the masks, in the order of their numbers; "
            "add dataset.class_names=[background,...]"
        )
    splits = find_splits(path, None, _scan)
    found = {name: images for name, (_, images) in splits.present.items()}
    files = divided(found, partial(hash_files, depth=1), test_fraction, f"images of {path}")
    count = len(class_names)
    return options.dataset(
        {
            name: MaskFileSplit(images, shape, count, **options.reading(name))
            for name, images in files.items()
        },
        image_shape=shape,
        num_classes=count,
        class_names=class_names,
        has_masks=True,
    )


class MaskFileSplit(FileSplit):
    """A split of image files with masks; a pair is decoded as an image with one more channel."""

    def __init__(
        self,
        images: Sequence[Path],
        image_shape: tuple[int, int, int],
        num_classes: int,
        **options: Any,
    ):
        height, width, channels = image_shape
        super().__init__(images, None, (height, width, channels + 1), **options)
        self._num_classes = num_classes

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each pair, [N], that other pairs do not change."""
        return hash_files(self._paths, depth=1)

    def content_identity(self) -> str:
        return f"{super().content_identity()} {files_identity(map(_mask_of, self._paths))}"

    def name(self, index: int) -> str:
        return f"{super().name(index)} with its mask"

    def reason(self, index: int) -> str:
        return (
            "the mask must be a gray PNG of 8 bits, not one with a palette, of the image's size, "
            f"with numbers below {self._num_classes} or {IGNORED}; where classes count from 1, "
            "name the unused 0 too: dataset.class_names=[unused,...]"
        )

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Read the pairs at `indices`, [B] int64, with `mask` [B, H, W] uint8."""
        batch = super().fetch(indices)
        both = batch["features"]
        return {**batch, "features": both[..., :-1], "mask": both[..., -1]}

    def _decode(self, path: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        height, width, depth = self._image_shape
        # As `_mask_of` does; a name need not be UTF-8.
        mask_path = tf.strings.regex_replace(path, r"^(\C*)images/(\C*)\.\C*$", r"\1masks/\2.png")
        mask = decode_mask(tf.io.read_file(mask_path), self._num_classes)
        content = tf.io.read_file(path)
        # Not with the image's other channels: a decoded image need not have the mask's size.
        size = tf.shape(tf.io.decode_image(content, expand_animations=False))[:2]
        checked = tf.debugging.assert_equal(size, tf.shape(mask)[:2])
        with tf.control_dependencies([checked]):
            image = decode(content, (height, width, depth - 1), self._framing)
            nearest = self._framing.apply(mask, (height, width), None, method="nearest")
        return tf.concat([image, tf.ensure_shape(nearest, [height, width, 1])], axis=-1)


def decode_mask(content: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Decode a PNG file, scalar string, to the numbers of classes, [H, W, 1] uint8.

    If it is no such mask, TensorFlow raises InvalidArgumentError at run time.
    """
    # TensorFlow would turn the numbers of a palette into colors, and stretch those of fewer bits.
    is_gray = tf.equal(tf.strings.substr(content, 24, 2), _GRAY_OF_8_BITS)
    with tf.control_dependencies([tf.debugging.assert_equal(is_gray, True)]):
        mask = tf.io.decode_png(content, channels=1)
    is_class = (mask < num_classes) | tf.equal(mask, IGNORED)
    with tf.control_dependencies([tf.debugging.assert_equal(tf.reduce_all(is_class), True)]):
        return tf.identity(mask)


def _mask_of(image: Path) -> Path:
    return image.parent.parent / "masks" / f"{image.stem}.png"


def _scan(path: Paths, key: str) -> list[Path]:
    """List the images of a folder, which all have masks, sorted by name."""
    root = Path(str(path)).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{key} ({root}): no such folder; {_LAYOUT}")
    for name in ("images", "masks"):
        if not (root / name).is_dir():
            raise ValueError(f"path ({root}) has no {name}/; {_LAYOUT}")
    images = [
        file
        for file in visible_files(root / "images")
        if file.suffix.lower() in EXTENSIONS and file.parent == root / "images"
    ]
    if not images:
        raise ValueError(f"path ({root / 'images'}) holds no {SUFFIXES_TEXT}")
    if missing := [mask for mask in map(_mask_of, images) if not mask.is_file()]:
        raise ValueError(
            f"path ({root}): {len(missing)} of {len(images)} images have no mask, the first one is "
            f"{missing[0]}; add them, or remove these images"
        )
    return images
