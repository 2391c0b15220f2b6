"""A split of TFRecord files: records are read by index in the graph, and parsed by the batch."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import CorruptFiles, decode, decode_batch
from trainer.datasets.records.record_features import Features
from trainer.datasets.records.record_index import RecordIndex
from trainer.datasets.splits.arrays import on_host


class CorruptRecords(CorruptFiles):
    """Counts unreadable records, as `<file>@<offset>`, and finds out what is wrong with each."""

    def __init__(self, max_corrupt: int, features: Features):
        """Take how many different records may be skipped, and what each must hold."""
        super().__init__(max_corrupt)
        self.features = features

    def problem(self, path: str) -> tuple[str, str]:
        file, _, offset = path.rpartition("@")
        reason = self._reason(Path(file), int(offset))
        record = f"the record at offset {offset} of {file}"
        return f"cannot read {record}: {reason}", f"skipped {record} ({reason})"

    def _reason(self, file: Path, offset: int) -> str:
        try:
            record = read_record(file, offset)
        except OSError as error:
            return error.strerror or str(error)
        except tf.errors.OpError as error:
            return "its checksum is wrong" if "corrupted" in str(error) else "it is cut short"
        problems = self.features.problems(record)
        image = self.features.image
        return "; ".join(problems) or f"{image} is no JPEG or PNG image"


class RecordSplit:
    """A split of records. Nothing but headers is read before `fetch`.

    Attributes:
        num_examples: how many records there are.
        in_memory: False, `fetch` reads files.
        augments: whether `fetch` takes the random numbers of the augmentation.
        hashes: a number in [0, 1) for each record, [N], that other records do not change.
    """

    in_memory = False

    def __init__(
        self,
        index: RecordIndex,
        features: Features,
        image_shape: tuple[int, int, int] | None,
        *,
        framing: Framing,
        corrupt: CorruptRecords,
    ):
        """Take the records and how to read them.

        Args:
            index: where they are.
            features: what is in them.
            image_shape: (height, width, channels) of decoded images; None: there are none.
            framing: which part of an image becomes an example.
            corrupt: counts the records that cannot be read.
        """
        self.num_examples = len(index)
        self.index = index
        self.hashes = index.hashes
        self.features = features
        self.augments = framing.min_area > 0 and image_shape is not None
        self._names = np.array([os.fsencode(file) for file in index.files])
        self._image_shape = image_shape
        self._framing = framing
        self._corrupt = corrupt

    def identity(self) -> str:
        """Return a text that changes with what `fetch` returns without random numbers."""
        framing = replace(self._framing, min_area=0.0)
        return f"{self.index.identity()} {self.features} {self._image_shape} {framing}"

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Read the records at `indices`, [B] int64.

        Args:
            indices: which.
            draws: random numbers for training, [B, num_draws] float32 in [0, 1).

        Returns:
            `features` [B, ...], `label` [B] int64, and `weight` [B] float32: 0, with zeros, for an
            unreadable record.

        Raises:
            tf.errors.InvalidArgumentError: more records are unreadable than may be skipped; the
                message names one. Called eagerly, it is the ValueError of `CorruptRecords`.
        """
        with tf.device("CPU:0"):
            names, ends, offsets = self._tensors
            files = tf.gather(names, tf.searchsorted(ends, indices, side="right"))
            where = tf.gather(offsets, indices)
            if self._image_shape is None:
                features, labels, good = self._read(files, where)
            else:
                parts = (files, where) if draws is None else (files, where, draws)
                features, labels, good = self._read_images(*parts)
            keys = tf.strings.join([files, tf.strings.as_string(where)], "@")
            return {**self._corrupt.count(features, good, keys), "label": labels}

    def _read_images(self, *parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return images, labels and whether each is good, of files, offsets and draws, each [B].

        An example is read, parsed and decoded in one call, so that its bytes are copied least, and
        all in parallel. If one fails, the batch is done again in steps, which find it.
        """
        batch_size = tf.shape(parts[0], out_type=tf.int64)[0]
        whole = tf.data.Dataset.from_tensor_slices(parts).map(
            self._image, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        whole = whole.batch(batch_size, drop_remainder=True).ignore_errors()
        again = tf.data.Dataset.from_tensors(parts).map(self._images_in_steps)
        read = whole.concatenate(again).take(1).get_single_element()
        for values in read:
            values.set_shape([parts[0].shape[0], *values.shape[1:]])
        return read

    def _image(self, file: tf.Tensor, offset: tf.Tensor, *draws: tf.Tensor) -> tuple[Any, ...]:
        """Return the image, the label, and whether that is a class, of one record."""
        record = _record(file, offset).get_single_element()
        contents, labels, is_class = self.features.parse(record[None])
        return self._decode(contents[0], *draws), labels[0], is_class[0]

    def _images_in_steps(
        self, files: tf.Tensor, offsets: tf.Tensor, *draws: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        contents, labels, good = self._read(files, offsets)
        images, decoded = decode_batch(
            (contents, *draws), self._decode, self._image_shape, tf.uint8
        )
        return images, labels, tf.logical_and(good, decoded)

    def _read(self, files: tf.Tensor, offsets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return features, labels and whether each is good, of records at [B] offsets.

        As in `decode_batch`, single records are read only if the batch as a whole cannot be.
        """

        # One element that is mapped: a dataset of records fails again and again where it failed
        # first, and `ignore_errors` would never end.
        def attempt(files: tf.Tensor, offsets: tf.Tensor) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors((files, offsets)).map(self._parse)

        whole = attempt(files, offsets)
        features, labels, good = whole.element_spec
        blank = tf.data.Dataset.from_tensors(
            (_blank(features), tf.zeros([], labels.dtype), tf.zeros([], good.dtype))
        )

        def parse_or_blank(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
            parsed = attempt(file[None], offset[None]).unbatch()
            return parsed.ignore_errors().concatenate(blank).take(1)

        singly = tf.data.Dataset.from_tensor_slices((files, offsets)).flat_map(parse_or_blank)
        singly = singly.batch(tf.shape(offsets, out_type=tf.int64)[0])
        parsed = whole.ignore_errors().concatenate(singly).take(1).get_single_element()
        for values in parsed:
            values.set_shape([offsets.shape[0], *values.shape[1:]])
        return parsed

    def _parse(self, files: tf.Tensor, offsets: tf.Tensor) -> tuple[tf.Tensor, ...]:
        records = tf.data.Dataset.from_tensor_slices((files, offsets)).flat_map(_record)
        batch_size = tf.shape(offsets, out_type=tf.int64)[0]
        return self.features.parse(
            records.batch(batch_size, drop_remainder=True).get_single_element()
        )

    def _decode(self, content: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        return decode(content, self._image_shape, self._framing, draws=draws)

    @cached_property
    def _tensors(self) -> list[tf.Tensor]:
        return on_host(self._names, np.cumsum(self.index.counts), self.index.offsets)


def read_record(file: Path, offset: int) -> bytes:
    """Return the data of the record at an offset; its checksum is verified.

    Raises:
        OSError: the file cannot be read.
        tf.errors.OpError: the record is damaged.
    """
    with file.open("rb"):
        pass
    # Within another dataset: alone, TensorFlow 2.21 cannot serialize one with offsets.
    place = tf.data.Dataset.from_tensors((os.fsencode(file), np.int64(offset)))
    records = list(place.flat_map(_record))
    if not records:
        raise OSError(errno.EIO, "it is cut short")
    return bytes(records[0].numpy())


def _record(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Return the dataset of the one record at an offset of a file."""
    # Not `tf.data.TFRecordDataset`, which takes no offsets. Without a buffer: it would be filled
    # with what follows the record.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(file, [1]),
        compression_type="",
        buffer_size=tf.constant(0, tf.int64),
        byte_offsets=tf.reshape(offset, [1]),
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(1)


def _blank(features: tf.TensorSpec) -> tf.Tensor:
    shape = features.shape[1:]
    return tf.fill(shape, "") if features.dtype == tf.string else tf.zeros(shape, features.dtype)
