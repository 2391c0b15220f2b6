"""TFRecord files of `tf.train.Example`, read by index.

The splits are separate files, or a share of the records by a hash of their numbers. Only headers
are read before training: records are read, checked and parsed batch by batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from trainer.annotations import Free, Ge, Gt, Le, Lt, Structural, takes
from trainer.datasets.cache.example_cache import with_cache
from trainer.datasets.images.images import ImageDataset, ImageOptions, check_channels, check_size
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.records.record_features import (
    Feature,
    Features,
    describe_record,
    read_features,
    suggest,
)
from trainer.datasets.records.tfrecord_files import (
    CorruptRecords,
    RecordIndex,
    TFRecordSplit,
    find_record_files,
    open_index,
    read_record,
)
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.datasets.splits.paths import find_splits

_TRIED = 16  # records that may be damaged before the first one that tells what is in them


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

    Args:
        options: those for images.
        path: a file, a folder or a pattern, or a list of them.
        test_path: the files to test on; None: what the folder has for it, else `test_fraction`.
        test_fraction: about which share of the records to test on if no files are for that.
        features: what is in a record: name -> kind, or -> the attributes of a `Feature`.
        label: which feature is the class; None: `label`.
        num_classes: how many classes there are.
        class_names: their names, in order.
        image_size: [height, width] of images; None: [224, 224], or as raw pixels are.
        channels: 3 for color, 1 for gray: files of images are converted; None: 3.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: they cannot be read by index, or records are not as described.
    """
    indexes = _open(path, test_path, test_fraction)
    contents = _contents(indexes["train"], features, label or "label", num_classes, class_names)
    corrupt = CorruptRecords(options.max_corrupt_records, contents)
    dataset = _dataset(indexes, corrupt, options, image_size, channels or 3)
    return with_cache(dataset, options.cache)


def _dataset(
    indexes: dict[str, RecordIndex],
    corrupt: CorruptRecords,
    options: ImageOptions,
    size: list[int] | None,
    channels: int,
) -> ImageDataset | ArrayDataset:
    """Return the dataset of some splits: of files of images, of raw pixels, or of numbers."""
    contents = corrupt.features
    shared: dict[str, Any] = {
        "num_classes": contents.num_classes,
        "class_names": contents.class_names,
        "augment": options.augment,
        "normalize": options.normalize,
    }
    if contents.image is not None:
        shape = _image_shape(contents, size or [224, 224], channels)
        shared |= {"image_shape": shape, "framing": options.framing}
    else:
        shape = None
    framings = dict.fromkeys(indexes, options.framing) | {"train": options.train_framing}
    splits = {
        name: TFRecordSplit(index, contents, shape, framing=framings[name], corrupt=corrupt)
        for name, index in indexes.items()
    }
    if shape is not None:
        return ImageDataset(**splits, **shared)
    if (pixels := contents.pixels) is not None:
        height, width, depth = pixels.shape
        shared |= {"image_shape": (height, width, depth), "max_value": pixels.max_value}
        return ImageDataset(**splits, image_size=size, **shared)
    _check_numbers(size, options.augment)
    return ArrayDataset(
        **splits, input_shape=contents.input_shape, num_classes=contents.num_classes
    )


def _image_shape(contents: Features, size: list[int], channels: int) -> tuple[int, int, int]:
    """Return the shape of decoded images, which must be the only input."""
    check_size(size)
    check_channels(channels)
    if len(contents.inputs) > 1:
        raise ValueError(
            f"features has {contents.inputs} beside the label; with an image there may be no "
            "others; remove them"
        )
    return size[0], size[1], channels


def _check_numbers(size: list[int] | None, augment: Augmentation | None) -> None:
    """Raise if an option for images is set, and there are none."""
    augments = augment is not None and (augment.num_draws or augment.min_area)
    if size is not None or augments:
        name = "augment" if augments else "image_size"
        raise ValueError(
            f"{name} is for images, and no feature is one; remove it, or describe an image in "
            "features, as {image: image}"
        )


def _open(
    path: str | list[str] | None, test_path: str | list[str] | None, test_fraction: float
) -> dict[str, RecordIndex]:
    splits = find_splits(path, test_path, find_record_files)
    found = {name: open_index(split.files) for name, split in splits.present.items()}
    if not splits.is_whole:
        return {"test": found["train"].select(np.zeros(0, np.int64)), **found}
    return found["train"].divide(test_fraction)


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
    has = f"the first record of {first} has {describe_record(record)}"
    if not features:
        raise ValueError(
            f"features (null) must say what is in a record; {has}; "
            f'add "dataset.features={suggest(record)}", without what is not needed'
        )
    by_name = read_features(features)
    if label not in by_name or len(by_name) < 2:
        raise ValueError(
            f"label ({label}) must be one of features, beside at least one other; features has "
            f"{', '.join(by_name)}; set dataset.label=<name>, or add the feature"
        )
    _check_label(by_name[label], label, class_names)
    if num_classes is None:
        raise ValueError("num_classes (null) must say how many classes the label counts")
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
