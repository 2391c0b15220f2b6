"""Records and image files as examples: read and decoded in parallel, unreadable ones skipped."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.images.framing import Framing, random_box
from trainer.datasets.operations.augment import BOX_COLUMNS
from trainer.datasets.splits.arrays import on_host
from trainer.datasets.splits.paths import files_identity, hash_files

logger = logging.getLogger(__name__)


class CorruptExamples:
    """Counts examples that cannot be read, over all splits of a dataset in this process."""

    def __init__(self, max_corrupt: int):
        self.max_corrupt = max_corrupt
        self.names: set[str] = set()
        self._lock = threading.Lock()  # several batches are decoded at a time

    def add(self, name: str, reason: str) -> None:
        """Skip an example; raise a ValueError if that is one too many."""
        with self._lock:
            if name in self.names:
                return
            count = len(self.names) + 1
            if count > self.max_corrupt:
                others = (
                    f", and {self.max_corrupt} others (max_corrupt_records) were skipped before"
                    if self.max_corrupt
                    else ""
                )
                raise ValueError(
                    f"cannot read {name}: {reason}{others}; repair or remove it, or let {count} be "
                    f"skipped with dataset.max_corrupt_records={count}"
                )
            self.names.add(name)
            logger.warning(
                "skipped %s (%s): %d of at most %d", name, reason, count, self.max_corrupt
            )


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
    """Decode images in parallel, and find those that cannot be decoded.

    Args:
        examples: the arguments of `decode` for each image, each [B, ...].

    Returns:
        The images, [B, *image_shape], black where they are damaged, and whether each is good, [B]
        bool.
    """
    batch_size = tf.shape(examples[0], out_type=tf.int64)[0]

    def decoded(*example: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(example).map(lambda *one: (decode(*one), True))

    slices = tf.data.Dataset.from_tensor_slices(examples)
    whole = slices.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # After an error the rest of the batch is shorter, and has no error.
    whole = whole.batch(batch_size, drop_remainder=True).map(
        lambda images: (images, tf.ones([batch_size], tf.bool))
    )
    blank = tf.zeros(image_shape, dtype), False
    images, good = whole_or_singly(whole, examples, decoded, blank)
    images.set_shape([images.shape[0], *image_shape])
    return images, good


def whole_or_singly(
    whole: tf.data.Dataset,
    examples: tuple[tf.Tensor, ...],
    single: Callable[..., tf.data.Dataset],
    blank: Any,
) -> Any:
    """Return the element of `whole`, a batch; or if that fails, of its examples one by one.

    So intact batches cost nothing extra.

    Args:
        examples: the arguments of `single` for each example, [B, ...].
        single: makes a dataset of one example.
        blank: stands for an example that fails.
    """

    def single_or_blank(*example: tf.Tensor) -> tf.data.Dataset:
        other = tf.data.Dataset.from_tensors(blank)
        return single(*example).ignore_errors().concatenate(other).take(1)

    batch_size = tf.shape(examples[0], out_type=tf.int64)[0]
    slices = tf.data.Dataset.from_tensor_slices(examples)
    singly = slices.flat_map(single_or_blank).batch(batch_size)
    result = whole.ignore_errors().concatenate(singly).take(1).get_single_element()
    for values in result:
        values.set_shape([examples[0].shape[0], *values.shape[1:]])
    return result


class RecordSplit:
    """A split of records, or files, that are read by their number. None is read before `fetch`.

    Args:
        image_shape: (height, width, channels) of images that are decoded, or None.
        max_value: what stands for white in decoded images.
    """

    in_memory = False

    def __init__(
        self,
        num_examples: int,
        image_shape: tuple[int, ...] | None,
        *,
        framing: Framing,
        corrupt: CorruptExamples,
        max_value: float = 255.0,
    ) -> None:
        self.num_examples = num_examples
        self.augments = framing.min_area > 0 and image_shape is not None
        self._image_shape = image_shape
        self._framing = framing
        self._corrupt = corrupt
        self._max_value = max_value

    def read(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
        """Read the records at `indices`, [B] int64.

        Returns:
            Features [B, ...], or of images what `_decode` takes, [B]; labels, or None; and whether
            each record is good, [B] bool, or None: they all are.
        """
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Return the name of an example, for messages."""
        raise NotImplementedError

    def reason(self, index: int) -> str:
        """Return why an example cannot be read."""
        return "it is no JPEG or PNG image"

    def content_identity(self) -> str:
        """Return a text that changes with what `read` returns."""
        raise NotImplementedError

    def identity(self) -> str:
        """Return a text that changes with what `fetch` returns without random numbers."""
        framing = replace(self._framing, min_area=0.0)
        return f"{self.content_identity()} {self._image_shape} {framing} {self._max_value}"

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Read the records at `indices`, [B] int64.

        Returns:
            `features` [B, ...], `label` if records have one, and where records may be damaged
            `weight` [B] float32: 0, with zeros, for a damaged one.

        Raises:
            tf.errors.InvalidArgumentError: more records are damaged than may be skipped; the
                message names one. Called eagerly, it is the ValueError of `CorruptExamples`.
        """
        with tf.device("CPU:0"):
            features, label, good = self.read(indices)
            batch = {} if label is None else {"label": label}
            if self._image_shape is not None:
                examples = (features,) if draws is None else (features, draws)
                dtype = tf.uint8 if self._max_value == 255 else tf.float32
                features, decoded = decode_batch(examples, self._decode, self._image_shape, dtype)
                good = decoded if good is None else good & decoded
            if good is None:
                return {**batch, "features": features}
            checked = tf.cond(
                tf.reduce_all(good),
                tf.no_op,
                lambda: tf.numpy_function(self._skip, [indices, good], []),
            )
            with tf.control_dependencies([checked]):
                weight = tf.cast(good, tf.float32)
                return {**batch, "features": tf.identity(features), "weight": weight}

    def _decode(self, content: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        return decode(
            content, self._image_shape, self._framing, max_value=self._max_value, draws=draws
        )

    def _skip(self, indices: np.ndarray, good: np.ndarray) -> None:
        for index in indices[~good]:
            name = self.name(index)
            if name not in self._corrupt.names:
                self._corrupt.add(name, self.reason(index))


class FileSplit(RecordSplit):
    """A split of image files, `paths` [N], with their labels, [N], if they have any."""

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        image_shape: tuple[int, int, int],
        **options: Any,
    ):
        super().__init__(len(paths), image_shape, **options)
        self.labels = None if labels is None else np.array(labels, np.int64)
        self._paths = paths

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each file, [N], that other files do not change."""
        return hash_files(self._paths, depth=2)

    def content_identity(self) -> str:
        labels = b"" if self.labels is None else self.labels.tobytes()
        return f"{files_identity(self._paths)} {hashlib.sha256(labels).hexdigest()}"

    def name(self, index: int) -> str:
        return os.fsencode(self._paths[index]).decode(errors="replace")

    def read(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, None]:
        paths, *labels = (tf.gather(constant, indices) for constant in self._tensors)
        return paths, labels[0] if labels else None, None

    def _decode(self, path: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        return super()._decode(tf.io.read_file(path), draws)

    @cached_property
    def _tensors(self) -> list[tf.Tensor]:
        return on_host(np.array([os.fsencode(path) for path in self._paths], bytes), self.labels)
