"""Image files as examples: reading and decoding in parallel, with unreadable files skipped."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

logger = logging.getLogger(__name__)


class CorruptFiles:
    """Counts unreadable files, over all splits of a dataset in this process, against a limit."""

    def __init__(self, max_corrupt_files: int):
        """Take how many different unreadable files may be skipped."""
        self.max_corrupt_files = max_corrupt_files
        self.paths: set[str] = set()
        self._lock = threading.Lock()  # several batches are decoded at a time

    def report(self, paths: np.ndarray, good: np.ndarray) -> None:
        """Count the files of a batch, paths [B] bytes, that are not good, [B] bool.

        Raises:
            ValueError: more different files are unreadable than `max_corrupt_files`; names the
                last of them.
        """
        with self._lock:
            for path in (raw.decode(errors="replace") for raw in paths[~good]):
                if path not in self.paths:
                    self._skip_or_raise(path)

    def _skip_or_raise(self, path: str) -> None:
        count = len(self.paths) + 1
        fix = (
            f"repair or remove it, or let {count} be skipped with dataset.max_corrupt_files={count}"
        )
        if self.max_corrupt_files == 0:
            raise ValueError(f"cannot read {path} as a JPEG or PNG image; {fix}")
        if count > self.max_corrupt_files:
            raise ValueError(
                f"cannot read {path} as a JPEG or PNG image, and {self.max_corrupt_files} others "
                f"(max_corrupt_files) were skipped before; {fix}"
            )
        self.paths.add(path)
        logger.warning(
            "skipped %s, which is no JPEG or PNG image: %d of at most %d",
            path,
            count,
            self.max_corrupt_files,
        )


def decode(
    content: tf.Tensor,
    image_shape: tuple[int, int, int],
    *,
    antialias: bool = False,
    max_value: float = 255.0,
) -> tf.Tensor:
    """Decode an image file: JPEG, PNG, BMP, or the first picture of a GIF.

    Args:
        content: its bytes, scalar string.
        image_shape: (height, width, channels) that it is resized and converted to.
        antialias: whether to average when an image is made smaller.
        max_value: what stands for white.

    Returns:
        The pixels [*image_shape], uint8 if white is 255, otherwise float32. If it is no image,
        TensorFlow raises InvalidArgumentError at run time.
    """
    height, width, channels = image_shape
    # Not for all formats: the decoders of JPEG and PNG convert to grey by themselves.
    start = tf.strings.substr(content, 0, 2)
    is_bmp_or_gif = tf.logical_or(tf.equal(start, "BM"), tf.equal(start, "GI"))
    image = tf.cond(
        is_bmp_or_gif,
        lambda: _convert_channels(tf.io.decode_image(content, expand_animations=False), channels),
        lambda: tf.io.decode_image(content, channels=channels, expand_animations=False),
    )
    image.set_shape([None, None, channels])
    resized = tf.image.resize(image, [height, width], antialias=antialias)
    pixels = tf.saturate_cast(tf.round(resized), tf.uint8)
    return pixels if max_value == 255 else tf.cast(pixels, tf.float32) * (max_value / 255)


def _convert_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Convert an image of 1, 3 or 4 channels: the decoders of BMP and GIF do not."""
    shape = tf.shape(image)
    colours = tf.broadcast_to(image[..., :3], [shape[0], shape[1], 3])
    return tf.image.rgb_to_grayscale(colours) if channels == 1 else colours


class FileSplit:
    """A split of image files. Nothing is read before `fetch`.

    Attributes:
        num_examples: how many files there are.
        in_memory: False, `fetch` reads files.
    """

    in_memory = False

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        image_shape: tuple[int, int, int],
        *,
        antialias: bool,
        corrupt: CorruptFiles,
        max_value: float = 255.0,
    ):
        """Take the files and how to decode them.

        Args:
            paths: the files, [N].
            labels: their labels, [N]; None: they have none.
            image_shape: (height, width, channels), as in `decode`.
            antialias: as in `decode`.
            corrupt: counts the files that cannot be read.
            max_value: as in `decode`.
        """
        self.num_examples = len(paths)
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = None if labels is None else np.array(labels, np.int64)
        self._image_shape = image_shape
        self._antialias = antialias
        self._max_value = max_value
        self._corrupt = corrupt
        self._constants: tuple[tf.Tensor, ...] | None = None

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Read the files at `indices`, [B] int64.

        Returns:
            `features` [B, *image_shape] as returned by `decode`, `label` [B] int64 if there are
            labels, and `weight` [B] float32: 0, with a black image, for an unreadable file.

        Raises:
            tf.errors.InvalidArgumentError: more files are unreadable than may be skipped; the
                message names one. Called eagerly, it is the ValueError of `CorruptFiles`.
        """
        with tf.device("CPU:0"):
            paths, *labels = (tf.gather(constant, indices) for constant in self._tensors())
            images, good = self._read(paths)
            checked = tf.cond(
                tf.reduce_all(good),
                tf.no_op,
                lambda: tf.numpy_function(self._corrupt.report, [paths, good], []),
            )
            with tf.control_dependencies([checked]):
                batch = {"features": tf.identity(images), "weight": tf.cast(good, tf.float32)}
            return {**batch, "label": labels[0]} if labels else batch

    def _read(self, paths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the images at `paths`, [B] string, and whether each is good, [B] bool.

        A batch is decoded as a whole, in parallel. Only if that fails is it decoded again, file by
        file, to find the unreadable ones, so intact files cost nothing extra. A failed batch has no
        first element: after an error the rest of it is shorter than B.
        """
        batch_size = tf.shape(paths, out_type=tf.int64)[0]
        files = tf.data.Dataset.from_tensor_slices(paths)
        whole = files.map(self._decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        whole = whole.batch(batch_size, drop_remainder=True).map(
            lambda images: (images, tf.ones([batch_size], tf.bool))
        )
        singly = files.flat_map(self._decode_or_blank).batch(batch_size)
        images, good = whole.ignore_errors().concatenate(singly).take(1).get_single_element()
        images.set_shape([paths.shape[0], *self._image_shape])
        good.set_shape([paths.shape[0]])
        return images, good

    def _decode_or_blank(self, path: tf.Tensor) -> tf.data.Dataset:
        decoded = tf.data.Dataset.from_tensors(path).map(lambda path: (self._decode(path), True))
        dtype = tf.uint8 if self._max_value == 255 else tf.float32
        blank = tf.data.Dataset.from_tensors((tf.zeros(self._image_shape, dtype), False))
        return decoded.ignore_errors().concatenate(blank).take(1)

    def _decode(self, path: tf.Tensor) -> tf.Tensor:
        return decode(
            tf.io.read_file(path),
            self._image_shape,
            antialias=self._antialias,
            max_value=self._max_value,
        )

    def _tensors(self) -> tuple[tf.Tensor, ...]:
        # As in `ArraySplit`: once, at first use, outside of any function that is being traced.
        if self._constants is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._constants = tuple(
                    tf.constant(x) for x in (self._paths, self._labels) if x is not None
                )
        return self._constants
