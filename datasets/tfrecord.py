"""TFRecord files of `tf.train.Example`, read by index in the graph.

The splits are separate files, or a fraction of the records by a hash of their numbers. A record is
its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). Only
lengths are read before training; the index is kept in `~/.cache/steadfast` for files of the same
paths, sizes and times of modification.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.lib.io.tf_record import tf_record_random_reader

from trainer.annotations import Free, Ge, Gt, Le, Lt, Structural, takes
from trainer.datasets.cache.kept_files import kept_arrays, key_of
from trainer.datasets.images.image_files import RecordSplit, whole_or_singly
from trainer.datasets.images.images import ImageDataset, ImageOptions, decoded_shape
from trainer.datasets.splits.arrays import ArrayDataset, on_host
from trainer.datasets.splits.paths import (
    divided,
    files_identity,
    find_files,
    find_splits,
    hash_rows,
)
from trainer.text import did_you_mean

KINDS = ("image", "raw", "string", "float", "int")
"""Kinds of features.

`image`: the bytes of a JPEG, PNG, BMP or GIF file. `raw`: the bytes of numbers, little-endian.
`string`: the name of a class.
"""
_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
_LISTS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int"}
_IMAGE_STARTS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP"}
_TRIED = 16  # records that may be damaged before the first one that shows what is in them
_FRAME_BYTES = 16  # of a record, in addition to its data
_RECORD_NAME = re.compile(r"^[^.].*(\.tfrec(ord)?s?\b|-\d{5}-of-\d{5}$)")
_COMPRESSED = {b"\x1f\x8b": "GZIP", b"\x78\x01": "ZLIB", b"\x78\x9c": "ZLIB", b"\x78\xda": "ZLIB"}


@takes(ImageOptions)
def tfrecord(  # noqa: PLR0913 - every option is a key of the configuration
    options: ImageOptions,
    *,
    path: Annotated[str | list[str] | None, Free(names_run=True)] = None,
    test_path: Annotated[str | list[str] | None, Free(names_run=True)] = None,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    features: dict[str, Any] | None = None,
    label: str | None = None,
    num_classes: Annotated[int | None, Ge(1), Structural()] = None,
    class_names: list[str] | None = None,
    image_size: Annotated[list[Annotated[int, Ge(1)]] | None, Structural()] = None,
    channels: Annotated[int | None, Ge(1), Le(3), Structural()] = None,
) -> ImageDataset | ArrayDataset:
    """TFRecord files: images, or numbers, and a class for each.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: they cannot be read by index, or records are not as described.
    """
    indexes = _open(path, test_path, test_fraction)
    contents = _contents(indexes["train"], features, label or "label", num_classes, class_names)
    return _dataset(indexes, contents, options, image_size, channels or 3)


def _dataset(
    indexes: dict[str, RecordIndex],
    contents: Features,
    options: ImageOptions,
    size: list[int] | None,
    channels: int,
) -> ImageDataset | ArrayDataset:
    """Return the dataset of some splits: of files of images, of raw pixels, or of numbers."""
    shape = None
    if contents.image is not None:
        shape = decoded_shape(size or [224, 224], channels)
        if len(contents.inputs) > 1:
            raise ValueError(
                f"features has {contents.inputs} and the label; with an image there may be no "
                "others; remove them"
            )
    splits = {
        name: TFRecordSplit(index, contents, shape, **options.reading(name))
        for name, index in indexes.items()
    }
    classes = {"num_classes": contents.num_classes, "class_names": contents.class_names}
    if shape is not None:
        return options.dataset(splits, image_shape=shape, **classes)
    if (pixels := contents.pixels) is not None:
        return options.dataset(
            splits,
            image_shape=pixels.shape,
            max_value=pixels.max_value,
            image_size=size,
            **classes,
        )
    if size is not None:
        raise ValueError(
            "image_size is for images, and no feature is one; remove it, or describe an image in "
            "features, as {image: image}"
        )
    return options.numbers(
        splits, input_shape=contents.input_shape, num_classes=contents.num_classes
    )


def _open(
    path: str | list[str] | None, test_path: str | list[str] | None, test_fraction: float
) -> dict[str, RecordIndex]:
    splits = find_splits(
        path, test_path, partial(find_files, suffixes=(".tfrecord",), name=_RECORD_NAME)
    )
    found = {name: open_index(split.files) for name, split in splits.present.items()}
    what = f"records of {splits.train.root}"
    return divided(found, RecordIndex.numbered_hashes, test_fraction, what, RecordIndex.select)


def _contents(
    index: RecordIndex,
    features: Mapping[str, Any] | None,
    label: str,
    num_classes: int | None,
    class_names: list[str] | None,
) -> Features:
    """Return what is in the records, checked against the first; options are those of `tfrecord`."""
    num_classes = num_classes or len(class_names or ()) or None
    first = index.files[0]
    record = _first_record(index)
    described = describe(record) or {}
    listed = ", ".join(f"{name}: {text}" for name, (text, _) in described.items()) or "none"
    has = f"the first record of {first} has {listed}"
    if not features:
        pairs = ((name, option) for name, (_, option) in described.items() if option)
        suggested = ", ".join(map(": ".join, pairs))
        raise ValueError(
            f"features (null) must declare what is in a record; {has}; "
            f'add "dataset.features={{{suggested}}}", without what is not needed'
        )
    by_name = read_features(features)
    if label not in by_name or len(by_name) < 2:
        raise ValueError(
            f"label ({label}) must be one of features, next to at least one other; features has "
            f"{', '.join(by_name)}; set dataset.label=<name>, or add the feature"
        )
    _check_label(by_name[label], label, class_names)
    if num_classes is None:
        raise ValueError("num_classes (null) must be the number of classes of the label")
    contents = Features(by_name, label, num_classes, class_names)
    if problem := contents.problem(record):
        raise ValueError(f"features: {problem}; {has}")
    return contents


def _first_record(index: RecordIndex) -> bytes:
    """Return the first record of the first file that is not damaged, of a few."""
    for offset in index.offsets[: min(_TRIED, int(index.counts[0]))].tolist():
        with suppress(OSError, tf.errors.OpError):
            return read_record(index.files[0], offset)
    raise ValueError(f"the first records of {index.files[0]} are damaged; write the file again")


def _check_label(feature: Feature, label: str, class_names: list[str] | None) -> None:
    if feature.kind == "string" and not class_names:
        raise ValueError(f"class_names (null) must list the classes, for the label {label} is text")
    if feature.kind not in ("int", "string") or feature.shape not in ((), (1,)):
        raise ValueError(
            f"features.{label} ({feature.kind} {list(feature.shape)}) must be a single int or "
            "string, for it is the label"
        )


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature, as the configuration describes it.

    Attributes:
        shape: of one example, for numbers; [] is a scalar.
        max_length: for lists of any length: they are cut or filled up to so many; then there is no
            shape.
        dtype: of `raw` numbers.
        default: what stands for a value that is missing; None: it must not be missing. With
            `max_length` it fills lists up, and None is 0.
        max_value: of `raw` images: the value of white.
        start: of labels: the number of the first class.
    """

    kind: str
    shape: tuple[int, ...] = ()
    max_length: int | None = None
    dtype: str = "uint8"
    default: float | str | None = None
    max_value: float = 255.0
    start: int = 0

    @property
    def size(self) -> tuple[int, ...]:
        """The static shape of one example."""
        return self.shape if self.max_length is None else (self.max_length,)

    @property
    def tensor_dtype(self) -> tf.DType:
        """The type of what `parse` returns."""
        numbers = {"float": tf.float32, "int": tf.int64, "raw": tf.as_dtype(self.dtype)}
        return numbers.get(self.kind, tf.string)

    def specification(self) -> Any:
        """Return the feature as `tf.io.parse_example` takes it."""
        if self.kind in ("image", "raw", "string"):
            return tf.io.FixedLenFeature([], tf.string, self.default)
        if self.max_length is not None:
            filling = self.default or 0
            return tf.io.FixedLenSequenceFeature(
                [], self.tensor_dtype, allow_missing=True, default_value=filling
            )
        default = None if self.default is None else np.full(self.shape, self.default).tolist()
        return tf.io.FixedLenFeature(self.shape, self.tensor_dtype, default)

    def finish(self, values: tf.Tensor) -> tf.Tensor:
        """Return what was parsed, [B, ...], with its static shape, [B, *size]."""
        if self.kind == "raw":
            numbers = tf.io.decode_raw(values, self.tensor_dtype)
            return tf.reshape(numbers, [-1, *self.shape])
        if self.max_length is not None:
            values = values[:, : self.max_length]
            missing = self.max_length - tf.shape(values)[1]
            filling = tf.cast(self.default or 0, values.dtype)
            values = tf.pad(values, [[0, 0], [0, missing]], constant_values=filling)
        return tf.ensure_shape(values, [None, *self.size])


@dataclass(frozen=True)
class Features:
    """All features that are read, by name; `label` is the class, by its name if it is a string."""

    by_name: Mapping[str, Feature]
    label: str
    num_classes: int
    class_names: Sequence[str] | None = field(default=None)

    @property
    def inputs(self) -> list[str]:
        """The names of the features that are not the label."""
        return [name for name in self.by_name if name != self.label]

    @property
    def image(self) -> str | None:
        """The name of the feature that holds encoded images, if one does."""
        return next((name for name in self.inputs if self.by_name[name].kind == "image"), None)

    @property
    def pixels(self) -> Feature | None:
        """The feature that holds the pixels of images, [H, W, C], if it is the only input."""
        first = self.by_name[self.inputs[0]]
        is_image = first.kind == "raw" and len(first.shape) == 3 and first.shape[2] in (1, 3)
        return first if is_image and len(self.inputs) == 1 else None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example's features, if they are numbers."""
        sizes = [self.by_name[name].size for name in self.inputs]
        return sizes[0] if len(sizes) == 1 else (sum(int(np.prod(size)) for size in sizes),)

    def parse(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Parse serialized examples, [B] string.

        Returns:
            The features: encoded images, [B] string; the only other input, [B, ...] in its own
            type; or all inputs side by side, [B, d] float32. Then the labels, [B] int64, and
            whether each is a class, [B] bool.
        """
        specification = {name: part.specification() for name, part in self.by_name.items()}
        parsed = tf.io.parse_example(records, specification)
        values = {name: part.finish(parsed[name]) for name, part in self.by_name.items()}
        labels = self._classes(values.pop(self.label))
        is_class = tf.logical_and(labels >= 0, labels < self.num_classes)
        if len(values) == 1:
            (features,) = values.values()
        else:
            columns = [
                tf.reshape(tf.cast(value, tf.float32), [-1, int(np.prod(self.by_name[name].size))])
                for name, value in values.items()
            ]
            features = tf.concat(columns, axis=1)
        return features, tf.where(is_class, labels, 0), is_class

    def problem(self, record: bytes) -> str | None:
        """Return what is wrong with a record, or None."""
        if describe(record) is None:
            return "no tf.train.Example"
        try:
            *_, is_class = self.parse(tf.constant([record]))
        except tf.errors.OpError as error:
            text = re.sub(r"^{{.*?}} |Name: <unknown>, |\.? \[Op:.*", "", str(error))
            return " ".join(text.split())
        return None if is_class[0] else f"{self.label} is not one of the classes"

    def _classes(self, values: tf.Tensor) -> tf.Tensor:
        part = self.by_name[self.label]
        if part.kind != "string":
            return tf.reshape(values, [-1]) - part.start
        same = values[:, None] == tf.constant(list(self.class_names or ()))
        return tf.where(tf.reduce_any(same, axis=1), tf.argmax(same, axis=1), -1)


def read_features(values: Mapping[str, Any]) -> dict[str, Feature]:
    """Return the features of the option `features`: name -> kind, or -> a mapping of attributes.

    Raises:
        ValueError: a kind or an attribute is wrong.
    """
    return {name: _read_feature(f"features.{name}", value) for name, value in values.items()}


def describe(record: bytes) -> dict[str, tuple[str, str | None]] | None:
    """Return what is in a record, or None if it is no Example.

    Returns:
        For each feature what it holds, such as `bytes (JPEG)`, and what the option `features` may
        have for it, such as `image`.
    """
    try:
        present = tf.train.Example.FromString(record).features.feature
    except Exception:  # any exception of protobuf
        return None
    described: dict[str, tuple[str, str | None]] = {}
    for name in sorted(present):
        kind = present[name].WhichOneof("kind")
        values = getattr(present[name], kind).value if kind else ()
        count, word = len(values), _LISTS.get(kind, "empty")
        image = None
        if word == "bytes" and count:
            starts = _IMAGE_STARTS.items()
            image = next((text for start, text in starts if values[0].startswith(start)), None)
        if word in ("int", "float"):
            option = word if count == 1 else f"{{kind: {word}, shape: [{count}]}}"
        else:
            option = "image" if image else None
        size = f" ({image or len(values[0])})" if word == "bytes" and count == 1 else ""
        described[name] = f"{word}{size}" if count == 1 else f"{word} [{count}]", option
    return described


def _read_feature(key: str, value: Any) -> Feature:
    options = {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or "kind" not in options:
        raise ValueError(
            f"{key} ({value}) must be a kind, or a mapping with one: {', '.join(KINDS)}"
        )
    names = list(Feature.__dataclass_fields__)
    for name in options:
        if name not in names:
            hint = did_you_mean(str(name), names)
            raise ValueError(f"unknown key '{key}.{name}'{hint}; known: {', '.join(names)}")
    kind = options["kind"]
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise ValueError(f"{key}.kind ({kind}) must be one of {', '.join(KINDS)}{hint}")
    feature = Feature(**{**options, "shape": tuple(options.get("shape", ()))})
    if any(not isinstance(side, int) or side < 1 for side in feature.shape):
        raise ValueError(f"{key}.shape ({list(feature.shape)}) must be positive numbers")
    if feature.dtype not in _DTYPES:
        raise ValueError(f"{key}.dtype ({feature.dtype}) must be one of {', '.join(_DTYPES)}")
    if feature.max_length is not None and (
        kind not in ("float", "int") or feature.shape or feature.max_length < 1
    ):
        raise ValueError(
            f"{key}.max_length ({feature.max_length}) must be at least 1, for a feature of kind "
            "float or int without a shape"
        )
    return feature


@dataclass(frozen=True)
class RecordIndex:
    """Every record of some files, in order."""

    files: tuple[Path, ...]
    counts: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)

    def identity(self) -> str:
        """Return a text that changes with the records, or with the files that hold them."""
        records = hashlib.sha256(self.counts.tobytes() + self.offsets.tobytes()).hexdigest()
        return f"{files_identity(self.files)} {records}"

    @property
    def hashes(self) -> np.ndarray:
        """A number in [0, 1) for each record, [N], by the name of its file and its place there."""
        parts = np.split(self.offsets, np.cumsum(self.counts)[:-1])
        files = zip(self.files, parts, strict=True)
        return np.concatenate([hash_rows(file.name, part) for file, part in files])

    def numbered_hashes(self) -> np.ndarray:
        """Return a number in [0, 1) for each record, [N], by file name and number in the file.

        It chooses the test split: files that are added later move no record.
        """
        pairs = zip(self.files, self.counts.tolist(), strict=True)
        return np.concatenate([hash_rows(file.name, np.arange(count)) for file, count in pairs])

    def select(self, rows: np.ndarray) -> RecordIndex:
        """Return the records of these numbers, [n] int64, ascending."""
        ends = np.searchsorted(rows, np.cumsum(self.counts))
        return RecordIndex(self.files, np.diff(ends, prepend=0), self.offsets[rows])


def open_index(files: Sequence[Path]) -> RecordIndex:
    """Return the index of some files: the one in the cache, or a new one, which is then kept there.

    Raises:
        ValueError: a file is empty, compressed, damaged or none of TFRecords.
    """

    def build() -> dict[str, np.ndarray]:
        offsets = [_scan(file) for file in files]
        counts = np.array([len(part) for part in offsets], np.int64)
        return {"counts": counts, "offsets": np.concatenate(offsets)}

    return RecordIndex(tuple(files), **kept_arrays(f"records-{key_of([], files)}", build))


def _scan(file: Path) -> np.ndarray:
    """Return where the records of a file begin, [n] int64.

    What is cut short at the end counts as a record: reading it fails, as for any damaged record.
    """
    _check_start(file)
    size = file.stat().st_size
    offsets: list[int] = []
    offset = 0
    with file.open("rb") as opened:
        while offset < size:
            offsets.append(offset)
            length = os.pread(opened.fileno(), 8, offset)
            offset += int.from_bytes(length, "little") + _FRAME_BYTES
    damaged = None
    while offset > size and not _is_record(file, offsets[-1]):
        damaged = offsets.pop()
    if damaged is not None:
        raise ValueError(
            f"{file} is damaged at offset {damaged}: the length of a record is wrong, so what "
            "follows cannot be found; write the file again"
        )
    return np.array(offsets, np.int64)


def _check_start(file: Path) -> None:
    """Raise unless a file starts with a record."""
    with file.open("rb") as opened:
        start = opened.read(2)
    if not start:
        raise ValueError(f"{file} is empty; remove it, or write it again")
    if _is_record(file, 0):
        return
    if kind := _COMPRESSED.get(start):
        raise ValueError(
            f"{file} is compressed ({kind}), so its records cannot be read by index; "
            f"decompress it{', with gunzip' if kind == 'GZIP' else ''}"
        )
    raise ValueError(f"{file} is no TFRecord file; remove it, or narrow dataset.path")


def _is_record(file: Path, offset: int) -> bool:
    """Return whether a record starts at an offset; its data may be damaged or cut short."""
    try:
        read_record(file, offset)
    except OSError:
        return offset > 0
    except tf.errors.DataLossError as error:
        # Of damaged data TensorFlow names another offset.
        return re.search(rf"corrupted record at {offset}\b", str(error)) is None
    return True


def read_record(file: Path, offset: int) -> bytes:
    """Return the verified data of a record, or raise an OSError or a DataLossError: damaged."""
    with file.open("rb"):
        pass
    try:
        record, _ = tf_record_random_reader(os.fsencode(file)).read(offset)
    except IndexError:
        raise OSError(errno.EIO, "it is cut short") from None
    return bytes(record)


class TFRecordSplit(RecordSplit):
    """A split of TFRecord files. Records are read and parsed in the graph, without Python."""

    def __init__(
        self,
        index: RecordIndex,
        features: Features,
        image_shape: tuple[int, ...] | None,
        **options: Any,
    ):
        super().__init__(len(index), image_shape, **options)
        self.index = index
        self.hashes = index.hashes
        self.features = features

    def content_identity(self) -> str:
        return f"{self.index.identity()} {self.features}"

    def name(self, index: int) -> str:
        file, offset = self._place(index)
        return f"the record at offset {offset} of {file}"

    def reason(self, index: int) -> str:
        try:
            record = read_record(*self._place(index))
        except OSError as error:
            return error.strerror or str(error)
        except tf.errors.OpError as error:
            return "its checksum is wrong" if "corrupted" in str(error) else "it is cut short"
        return self.features.problem(record) or super().reason(index)

    def _place(self, index: int) -> tuple[Path, int]:
        """Return the file of a record, and where it begins there."""
        number = np.searchsorted(np.cumsum(self.index.counts), index, side="right")
        return self.index.files[number], int(self.index.offsets[index])

    def read(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return features, labels and whether each is good, of the records at `indices`, [B]."""
        names, ends, offsets = self._tensors
        places = (
            tf.gather(names, tf.searchsorted(ends, indices, side="right")),
            tf.gather(offsets, indices),
        )

        # One element that is mapped: a dataset of records fails again and again where it failed
        # first, and `ignore_errors` would never end.
        def attempt(*places: tf.Tensor) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(places).map(self._parse)

        whole = attempt(*places)
        features, labels, good = whole.element_spec
        blank = _blank(features), tf.zeros([], labels.dtype), tf.zeros([], good.dtype)

        def single(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
            return attempt(file[None], offset[None]).unbatch()

        result: tuple[tf.Tensor, tf.Tensor, tf.Tensor] = whole_or_singly(
            whole, places, single, blank
        )
        return result

    def _parse(self, files: tf.Tensor, offsets: tf.Tensor) -> tuple[tf.Tensor, ...]:
        records = tf.data.Dataset.from_tensor_slices((files, offsets)).flat_map(_record)
        batch_size = tf.shape(offsets, out_type=tf.int64)[0]
        return self.features.parse(
            records.batch(batch_size, drop_remainder=True).get_single_element()
        )

    @cached_property
    def _tensors(self) -> list[tf.Tensor]:
        names = np.array([os.fsencode(file) for file in self.index.files])
        return on_host(names, np.cumsum(self.index.counts), self.index.offsets)


def _record(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
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
