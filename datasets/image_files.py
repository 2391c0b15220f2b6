"""Examples that are image files: a split that reads and decodes them in parallel, and gets over broken ones."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

logger = logging.getLogger(__name__)


class BadFiles:
    """The broken files skipped so far, over all splits of a dataset in this process, and how many of them are let pass."""

    def __init__(self, max_bad: int):
        """Takes how many different broken files are let pass."""
        self.max_bad = max_bad
        self.paths: set[str] = set()
        self._lock = threading.Lock()  # several batches are decoded at a time

    def report(self, paths: np.ndarray, good: np.ndarray) -> None:
        """Counts the files of a batch, paths [B] bytes, that are not good, [B] bool.

        Raises:
            ValueError: more different files are broken than `max_bad`; names the last of them.
        """
        with self._lock:
            for path in (raw.decode(errors="replace") for raw in paths[~good]):
                if path not in self.paths:
                    self._judge(path)

    def _judge(self, path: str) -> None:
        count = len(self.paths) + 1
        fix = f"repair or remove it, or let {count} be skipped with dataset.max_bad={count}"
        if self.max_bad == 0:
            raise ValueError(f"cannot read {path} as a JPEG or PNG image; {fix}")
        if count > self.max_bad:
            raise ValueError(f"cannot read {path} as a JPEG or PNG image, and {self.max_bad} others (max_bad) were skipped before; {fix}")
        self.paths.add(path)
        logger.warning("skipped %s, which is no JPEG or PNG image: %d of at most %d", path, count, self.max_bad)


def decode(content: tf.Tensor, image_shape: tuple[int, int, int], *, antialias: bool = False, max_value: float = 255.0) -> tf.Tensor:
    """Decodes an image file: JPEG, PNG, BMP, or the first picture of a GIF.

    Args:
        content: its bytes, scalar string.
        image_shape: (height, width, channels) that it is resized and converted to.
        antialias: whether to average when an image is made smaller.
        max_value: what stands for white.

    Returns:
        The pixels, uint8 if white is 255, otherwise float32; InvalidArgumentError at run time if it is no image.
    """
    height, width, channels = image_shape
    # Not for all: their own way to grey is what JPEG and PNG files have always been read by.
    start = tf.strings.substr(content, 0, 2)
    is_other = tf.logical_or(tf.equal(start, "BM"), tf.equal(start, "GI"))
    image = tf.cond(
        is_other,
        lambda: _converted(tf.io.decode_image(content, expand_animations=False), channels),
        lambda: tf.io.decode_image(content, channels=channels, expand_animations=False),
    )
    image.set_shape([None, None, channels])
    resized = tf.image.resize(image, [height, width], antialias=antialias)
    pixels = tf.saturate_cast(tf.round(resized), tf.uint8)
    return pixels if max_value == 255 else tf.cast(pixels, tf.float32) * (max_value / 255)


def _converted(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Converts an image of 1, 3 or 4 channels: the decoders of BMP and GIF do not."""
    shape = tf.shape(image)
    colours = tf.broadcast_to(image[..., :3], [shape[0], shape[1], 3])
    return tf.image.rgb_to_grayscale(colours) if channels == 1 else colours


class FileSplit:
    """A split of image files. Nothing is read before `fetch`.

    Attributes:
        num_examples: how many files there are.
        resident: False, `fetch` reads files.
    """

    resident = False

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        image_shape: tuple[int, int, int],
        *,
        antialias: bool,
        bad: BadFiles,
        max_value: float = 255.0,
    ):
        """Takes paths and labels, if there are any, both [N]; what `decode` takes; and where broken files count."""
        self.num_examples = len(paths)
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = None if labels is None else np.array(labels, np.int64)
        self._image_shape, self._antialias, self._max_value = image_shape, antialias, max_value
        self._bad = bad
        self._constants: tuple[tf.Tensor, ...] | None = None

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Reads the files at `indices`, [B] int64.

        Returns:
            `features` [B, *image_shape] as `decode` gives them, `label` [B] int64 if they have any, and `weight` [B] float32: 0, with
            a black image, for a file that cannot be read.

        Raises:
            tf.errors.InvalidArgumentError: more files cannot be read than are let pass; the message names one. Called eagerly,
                outside of any graph, it is the ValueError itself.
        """
        with tf.device("CPU:0"):
            paths, *labels = (tf.gather(constant, indices) for constant in self._tensors())
            images, good = self._read(paths)
            checked = tf.cond(tf.reduce_all(good), tf.no_op, lambda: tf.numpy_function(self._bad.report, [paths, good], []))
            with tf.control_dependencies([checked]):
                batch = {"features": tf.identity(images), "weight": tf.cast(good, tf.float32)}
            return {**batch, "label": labels[0]} if labels else batch

    def _read(self, paths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives the images at `paths`, [B] string, and whether each is good, [B] bool.

        A batch is decoded as a whole, in parallel; only if that fails is it done again file by file to find the broken ones,
        so that the usual case costs no more than if no file could be broken. A failed batch cannot give a first element:
        after an error the rest of it is short of B.
        """
        batch_size = tf.shape(paths, out_type=tf.int64)[0]
        files = tf.data.Dataset.from_tensor_slices(paths)
        whole = files.map(self._decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        whole = whole.batch(batch_size, drop_remainder=True).map(lambda images: (images, tf.ones([batch_size], tf.bool)))
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
        return decode(tf.io.read_file(path), self._image_shape, antialias=self._antialias, max_value=self._max_value)

    def _tensors(self) -> tuple[tf.Tensor, ...]:
        # As in `ArraySplit`: once, at first use, outside of any function that is being traced.
        if self._constants is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._constants = tuple(tf.constant(x) for x in (self._paths, self._labels) if x is not None)
        return self._constants
