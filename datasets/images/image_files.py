"""Image files as examples: reading and decoding in parallel, with unreadable files skipped."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer.datasets.images.framing import Framing, random_box
from trainer.datasets.operations.augment import BOX_COLUMNS
from trainer.datasets.splits.arrays import on_host
from trainer.datasets.splits.hashed_split import hash_texts

logger = logging.getLogger(__name__)


class CorruptFiles:
    """Counts unreadable files, over all splits of a dataset in this process, against a limit."""

    def __init__(self, max_corrupt: int):
        """Take how many different unreadable files may be skipped."""
        self.max_corrupt = max_corrupt
        self.paths: set[str] = set()
        self._lock = threading.Lock()  # several batches are decoded at a time

    def report(
        self,
        keys: np.ndarray,
        good: np.ndarray,
        name: Callable[[np.ndarray], list[str]] | None = None,
    ) -> None:
        """Count the examples of a batch that are not good; see `count`.

        Raises:
            ValueError: more different files are unreadable than `max_corrupt_records`; names the
                last of them.
        """
        bad = keys[~good]
        names = [raw.decode(errors="replace") for raw in bad] if name is None else name(bad)
        with self._lock:
            for path in names:
                if path not in self.paths:
                    self._skip_or_raise(path)

    def problem(self, path: str) -> tuple[str, str]:
        """Return how an error and a warning about a file begin."""
        return (
            f"cannot read {path} as a JPEG or PNG image",
            f"skipped {path}, which is no JPEG or PNG image",
        )

    def _skip_or_raise(self, path: str) -> None:
        count = len(self.paths) + 1
        problem, skipped = self.problem(path)
        fix = (
            f"repair or remove it, or let {count} be skipped with "
            f"dataset.max_corrupt_records={count}"
        )
        if self.max_corrupt == 0:
            raise ValueError(f"{problem}; {fix}")
        if count > self.max_corrupt:
            raise ValueError(
                f"{problem}, and {self.max_corrupt} others (max_corrupt_records) were skipped "
                f"before; {fix}"
            )
        self.paths.add(path)
        logger.warning("%s: %d of at most %d", skipped, count, self.max_corrupt)

    def count(
        self,
        features: tf.Tensor,
        good: tf.Tensor,
        keys: tf.Tensor,
        name: Callable[[np.ndarray], list[str]] | None = None,
    ) -> dict[str, tf.Tensor]:
        """Return a batch in which examples that are not good have weight 0, and count these.

        Args:
            features: [B, ...].
            good: [B] bool.
            keys: their files, [B] string; or of any type that `name` takes.
        """
        report = partial(self.report, name=name)
        checked = tf.cond(
            tf.reduce_all(good), tf.no_op, lambda: tf.numpy_function(report, [keys, good], [])
        )
        with tf.control_dependencies([checked]):
            return {"features": tf.identity(features), "weight": tf.cast(good, tf.float32)}


def decode(
    content: tf.Tensor,
    image_shape: tuple[int, int, int],
    framing: Framing,
    *,
    max_value: float = 255.0,
    draws: tf.Tensor | None = None,
) -> tf.Tensor:
    """Decode an image file: JPEG, PNG, BMP, or the first picture of a GIF.

    Args:
        content: its bytes, scalar string.
        image_shape: (height, width, channels) that it is resized and converted to.
        max_value: what stands for white.
        draws: the example's random numbers, [num_draws] float32; None in evaluation.

    Returns:
        The pixels [*image_shape], uint8 if white is 255, otherwise float32. If it is no image,
        TensorFlow raises InvalidArgumentError at run time.
    """
    box = None if draws is None else tf.gather(draws, BOX_COLUMNS)
    if box is None or not framing.min_area:
        resized = _decode_whole(content, image_shape, framing, box)
    else:
        resized = tf.cond(
            tf.equal(tf.strings.substr(content, 0, 3), b"\xff\xd8\xff"),
            lambda: _decode_box(content, image_shape, framing, box),
            lambda: _decode_whole(content, image_shape, framing, box),
        )
    pixels = tf.saturate_cast(tf.round(resized), tf.uint8)
    return pixels if max_value == 255 else tf.cast(pixels, tf.float32) * (max_value / 255)


def _decode_whole(
    content: tf.Tensor,
    image_shape: tuple[int, int, int],
    framing: Framing,
    draws: tf.Tensor | None,
) -> tf.Tensor:
    """Return an image of any format, decoded and framed, [*image_shape] float32."""
    height, width, channels = image_shape
    # Not for all formats: the decoders of JPEG and PNG convert to gray by themselves.
    start = tf.strings.substr(content, 0, 2)
    is_bmp_or_gif = tf.logical_or(tf.equal(start, "BM"), tf.equal(start, "GI"))
    image = tf.cond(
        is_bmp_or_gif,
        lambda: _convert_channels(tf.io.decode_image(content, expand_animations=False), channels),
        lambda: tf.io.decode_image(content, channels=channels, expand_animations=False),
    )
    image.set_shape([None, None, channels])
    return framing.apply(image, (height, width), draws)


def _decode_box(
    content: tf.Tensor, image_shape: tuple[int, int, int], framing: Framing, draws: tf.Tensor
) -> tf.Tensor:
    """Return the random box of a JPEG, [*image_shape] float32; only this part is decoded."""
    height, width, channels = image_shape
    size = tf.image.extract_jpeg_shape(content)
    box = random_box(size[0], size[1], (height, width), framing.min_area, draws)
    image = tf.image.decode_and_crop_jpeg(content, tf.stack(box), channels=channels)
    return tf.image.resize(image, (height, width), antialias=framing.antialias)


def _convert_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Convert an image of 1, 3 or 4 channels: the decoders of BMP and GIF do not."""
    shape = tf.shape(image)
    colors = tf.broadcast_to(image[..., :3], [shape[0], shape[1], 3])
    return tf.image.rgb_to_grayscale(colors) if channels == 1 else colors


def decode_batch(
    examples: tuple[tf.Tensor, ...],
    decode: Callable[..., tf.Tensor],
    image_shape: tuple[int, int, int],
    dtype: tf.DType,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode images, and find those that cannot be decoded.

    A batch is decoded as a whole, in parallel. Only if that fails is it decoded again, one by one,
    to find the damaged images, so intact ones cost nothing extra. A failed batch has no first
    element: after an error the rest of it is shorter than B.

    Args:
        examples: the arguments of `decode` for each image, each [B, ...].
        decode: returns the pixels of one image, or raises InvalidArgumentError at run time.

    Returns:
        The images, [B, *image_shape], black where they are damaged, and whether each is good, [B]
        bool.
    """
    batch_size = tf.shape(examples[0], out_type=tf.int64)[0]

    def decode_or_blank(*example: tf.Tensor) -> tf.data.Dataset:
        decoded = tf.data.Dataset.from_tensors(example).map(lambda *one: (decode(*one), True))
        blank = tf.data.Dataset.from_tensors((tf.zeros(image_shape, dtype), False))
        return decoded.ignore_errors().concatenate(blank).take(1)

    slices = tf.data.Dataset.from_tensor_slices(examples)
    whole = slices.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    whole = whole.batch(batch_size, drop_remainder=True).map(
        lambda images: (images, tf.ones([batch_size], tf.bool))
    )
    singly = slices.flat_map(decode_or_blank).batch(batch_size)
    images, good = whole.ignore_errors().concatenate(singly).take(1).get_single_element()
    images.set_shape([examples[0].shape[0], *image_shape])
    good.set_shape([examples[0].shape[0]])
    return images, good


class FileSplit:
    """A split of image files. Nothing is read before `fetch`.

    Attributes:
        augments: whether `fetch` takes the random numbers of the augmentation.
    """

    in_memory = False

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        image_shape: tuple[int, int, int],
        *,
        framing: Framing,
        corrupt: CorruptFiles,
        max_value: float = 255.0,
    ):
        """Take the files and how to decode them.

        Args:
            paths: the files, [N].
            labels: their labels, [N]; None: they have none.
            image_shape: (height, width, channels), as in `decode`.
        """
        self.num_examples = len(paths)
        self._paths = np.array([os.fsencode(path) for path in paths], bytes)
        self.labels = None if labels is None else np.array(labels, np.int64)
        self._image_shape = image_shape
        self._framing = framing
        self.augments = framing.min_area > 0
        self._max_value = max_value
        self._corrupt = corrupt

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each file, [N], that other files do not change."""
        return hash_texts("/".join(Path(os.fsdecode(path)).parts[-2:]) for path in self._paths)

    def identity(self) -> str:
        """Return a text that changes with what `fetch` returns without random numbers."""
        digest = hashlib.sha256()
        for path in self._paths:
            status = os.stat(path)
            digest.update(b"%s\0%d %d\n" % (path, status.st_size, status.st_mtime_ns))
        labels = b"" if self.labels is None else self.labels.tobytes()
        digest.update(labels)
        framing = replace(self._framing, min_area=0.0)
        return f"{digest.hexdigest()} {self._image_shape} {framing} {self._max_value}"

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Read the files at `indices`, [B] int64.

        Args:
            draws: random numbers for training, [B, num_draws] float32 in [0, 1).

        Returns:
            `features` [B, *image_shape] as returned by `decode`, `label` [B] int64 if there are
            labels, and `weight` [B] float32: 0, with a black image, for an unreadable file.

        Raises:
            tf.errors.InvalidArgumentError: more files are unreadable than may be skipped; the
                message names one. Called eagerly, it is the ValueError of `CorruptFiles`.
        """
        with tf.device("CPU:0"):
            paths, *labels = (tf.gather(constant, indices) for constant in self._tensors)
            examples = (paths,) if draws is None else (paths, draws)
            dtype = tf.uint8 if self._max_value == 255 else tf.float32
            images, good = decode_batch(examples, self._decode, self._image_shape, dtype)
            batch = self._corrupt.count(images, good, paths)
            return {**batch, "label": labels[0]} if labels else batch

    def _decode(self, path: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        content = tf.io.read_file(path)
        return decode(
            content, self._image_shape, self._framing, max_value=self._max_value, draws=draws
        )

    @cached_property
    def _tensors(self) -> list[tf.Tensor]:
        return on_host(self._paths, self.labels)
