"""TFRecord files of `tf.train.Example`, read by index.

The splits are separate files, or a share of the records by a hash of their numbers. Only headers
are read before training: records are read, checked and parsed batch by batch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Free, Ge, Gt, Le, Lt, OneOf, Structural
from trainer.datasets.cache.example_cache import with_cache
from trainer.datasets.images.framing import Framing
from trainer.datasets.images.images import ImageDataset, ImageOptions, check_channels, check_size
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.records.record_features import (
    Feature,
    Features,
    describe_record,
    read_features,
    suggest,
)
from trainer.datasets.records.record_index import RecordIndex, find_files, open_index
from trainer.datasets.records.record_split import CorruptRecords, RecordSplit, read_record
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.datasets.splits.paths import split_folders

_TRIED = 16  # records that may be damaged before the first one that tells what is in them


def tfrecord(  # noqa: PLR0913 - every option is a key of the configuration
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
    crop: Annotated[float | None, Gt(0), Le(1)] = None,
    antialias: bool = False,
    max_corrupt_records: Annotated[int, Ge(0), Free()] = 0,
    cache: Annotated[str, OneOf("none", "disk"), Free()] = "none",
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset | ArrayDataset:
    """TFRecord files: images, or numbers, and a class for each.

    Args:
        path: a file, a folder or a pattern, or a list of them.
        test_path: the files to test on; None: what the folder has for it, else `test_fraction`.
        test_fraction: about which share of the records to test on if no files are for that.
        features: what is in a record: name -> kind, or -> the attributes of a `Feature`.
        label: which feature is the class; None: `label`.
        num_classes: how many classes there are.
        class_names: their names, in order.
        image_size: [height, width] of images; None: [224, 224], or as raw pixels are.
        channels: 3 for color, 1 for gray: files of images are converted; None: 3.
        crop: resize the middle of an image, as in `image_folder`.
        antialias: whether to average when a file of an image is made smaller.
        max_corrupt_records: how many unreadable records each process skips before an error.
        cache: where decoded examples are kept, for all processes of a host: none, or a file on the
            `disk` in ~/.cache/steadfast.
        augment: random changes of images in training.
        normalize: what is subtracted from the pixels and what they are divided by.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: they cannot be read by index, or records are not as described.
    """
    train, test = _open(path, test_path, test_fraction)
    contents = _contents(train, features, label or "label", num_classes, class_names)
    options = ImageOptions(crop=crop, antialias=antialias, augment=augment, normalize=normalize)
    corrupt = CorruptRecords(max_corrupt_records, contents)
    dataset = _dataset(train, test, corrupt, options, image_size, channels or 3)
    return with_cache(dataset, cache)


def _dataset(
    train: RecordIndex,
    test: RecordIndex,
    corrupt: CorruptRecords,
    options: ImageOptions,
    size: list[int] | None,
    channels: int,
) -> ImageDataset | ArrayDataset:
    """Return the dataset of two splits: of files of images, of raw pixels, or of numbers."""
    contents = corrupt.features
    shared: dict[str, Any] = {
        "num_classes": contents.num_classes,
        "class_names": contents.class_names,
        "augment": options.augment,
        "normalize": options.normalize,
    }
    if contents.image is not None:
        shape = _image_shape(contents, size or [224, 224], channels)
        framing, random = options.framing, options.train_framing
        return ImageDataset(
            train=RecordSplit(train, contents, shape, framing=random, corrupt=corrupt),
            test=RecordSplit(test, contents, shape, framing=framing, corrupt=corrupt),
            image_shape=shape,
            framing=framing,
            **shared,
        )
    splits = {
        name: RecordSplit(index, contents, None, framing=Framing(), corrupt=corrupt)
        for name, index in (("train", train), ("test", test))
    }
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
) -> tuple[RecordIndex, RecordIndex]:
    """Return the records of both splits."""
    if path is None:
        raise ValueError("path (null) must name TFRecord files: a folder, a pattern or a list")
    train_files, test_files = find_splits(path, test_path)
    index = open_index(train_files)
    if test_files is not None:
        return index, open_index(test_files)
    train, test = index.divide(test_fraction)
    if not len(train) or not len(test):
        raise ValueError(
            f"test_fraction ({test_fraction}) leaves none of the {len(index)} records in the "
            f"{'train' if not len(train) else 'test'} split; change it, or set test_path"
        )
    return train, test


def _contents(
    index: RecordIndex,
    features: Mapping[str, Any] | None,
    label: str,
    num_classes: int | None,
    class_names: list[str] | None,
) -> Features:
    """Return what is in the records, checked against the first one.

    Args:
        index: the records.
        features: as in `tfrecord`, like the others.
        label: the class.
        num_classes: how many classes.
        class_names: their names.
    """
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
    if problems := contents.problems(record):
        raise ValueError(f"features: {'; '.join(problems)}; {has}")
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


logger = logging.getLogger(__name__)

_HELD_OUT = (("test",), ("val", "validation"))
"""Words of the files to test on; those of validation only where there are no others."""


def find_splits(
    path: str | Sequence[str], test_path: str | Sequence[str] | None
) -> tuple[list[Path], list[Path] | None]:
    """Find the files of both splits.

    Args:
        path: a file, a folder or a pattern, or several of them.
        test_path: the files for testing; None: a folder may tell: by folders train/ and test/ (or
            val/, validation/), or by such words in the names of files.

    Returns:
        The files to train on; and those to test on, or None for a fraction of the records.

    Raises:
        FileNotFoundError: there are no such files.
    """
    if test_path is not None:
        return find_files("path", path), find_files("test_path", test_path)
    root = Path(path).expanduser() if isinstance(path, str) else None
    if root is None or not root.is_dir():
        return find_files("path", path), None
    folder, held_out = split_folders(root)
    if folder != root:
        return find_files("path", str(folder)), held_out and find_files("path", str(held_out))
    files = find_files("path", str(root))
    train = _named(files, "train")
    test, *others = [named for words in _HELD_OUT if (named := _named(files, *words))] or [[]]
    if train and others:
        logger.warning(
            "path (%s): %s is not used, nor are the other files like it; to select checkpoints "
            "by them, add dataset.validation=<pattern>",
            *(root, others[0][0].name),
        )
    return (train, test) if train and test else (files, None)


def _named(files: Sequence[Path], *words: str) -> list[Path]:
    """Return the files whose names have one of some words."""
    pattern = re.compile(rf"(^|[-_.])({'|'.join(words)})([-_.]|$)")
    return [file for file in files if pattern.search(file.name)]
