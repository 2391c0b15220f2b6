"""Any folder of images with one sub-folder per class.

`train/` and `test/` (or `val/`) in it, each a tree of classes, are the splits. Otherwise a file
belongs to the test split if a hash of its relative path falls under `test_fraction`: files that are
added later move no other. Files are read while training; hidden ones are ignored, and a warning
counts the images that are not used, because they are loose, in deeper folders or of other formats.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from pathlib import Path
from typing import Annotated

from trainer.annotations import Exists, Free, Ge, Gt, Le, Lt, OneOf, Structural
from trainer.datasets.cache.example_cache import with_cache
from trainer.datasets.images.image_files import CorruptFiles, FileSplit
from trainer.datasets.images.images import (
    ImageDataset,
    ImageOptions,
    check_channels,
    check_size,
)
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.hashed_split import hash_text
from trainer.datasets.splits.paths import split_folders

logger = logging.getLogger(__name__)

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
SUFFIXES_TEXT = ".jpg, .jpeg, .png, .bmp or .gif"
_OTHER_EXTENSIONS = (".webp", ".tif", ".tiff", ".heic", ".avif", ".jfif")
_LAYOUT = f"it must hold <class>/<name>{SUFFIXES_TEXT}, or such trees in train/ and test/"


def image_folder(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    path: Annotated[str | None, Exists("directory"), Free(names_run=True)] = None,
    image_size: Annotated[list[Annotated[int, Ge(1)]], Structural()] = [224, 224],  # noqa: B006 - never changed
    channels: Annotated[int, Ge(1), Le(3), Structural()] = 3,
    crop: Annotated[float | None, Gt(0), Le(1)] = None,
    antialias: bool = False,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    max_corrupt_records: Annotated[int, Ge(0), Free()] = 0,
    cache: Annotated[str, OneOf("none", "disk"), Free()] = "none",
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset:
    """Images in folders: `<path>/<class>/<name>.jpg`, .png, ...; labels are the sorted classes.

    Args:
        path: the folder.
        image_size: [height, width] that every image is resized to.
        crop: resize the middle of an image: this share of the largest box that has the proportions
            of `image_size`; None: all of it. In training `augment.min_area` has precedence.
        channels: 3 for color, 1 for gray; files are converted.
        antialias: whether to average when an image is made smaller; finer, twice as slow to decode.
        test_fraction: about which share of the images to test on if there is no `test/` or `val/`.
        max_corrupt_records: how many unreadable files each process skips before it is an error.
        cache: where decoded examples are kept: none, or `disk`, as in `tfrecord`.
        augment: random changes of the images in training.
        normalize: what is subtracted from the pixels and what they are divided by.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is not such a tree.
    """
    check_size(image_size)
    check_channels(channels)
    train, test, classes = _splits(path, test_fraction)
    shape = (image_size[0], image_size[1], channels)
    options = ImageOptions(crop=crop, antialias=antialias, augment=augment)
    corrupt = CorruptFiles(max_corrupt_records)
    split = functools.partial(FileSplit, image_shape=shape, corrupt=corrupt)
    dataset = ImageDataset(
        train=split(train, _labels(train, classes), framing=options.train_framing),
        test=split(test, _labels(test, classes), framing=options.framing),
        image_shape=shape,
        num_classes=len(classes),
        class_names=classes,
        framing=options.framing,
        augment=augment,
        normalize=normalize,
    )
    return with_cache(dataset, cache)


def _splits(path: str | None, test_fraction: float) -> tuple[list[Path], list[Path], list[str]]:
    """Return the files to train on, those to test on, and the sorted names of the classes."""
    if path is None:
        raise ValueError(f"path (null) must name a folder of images; {_LAYOUT}")
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"path ({root}): no such folder; {_LAYOUT}")
    folder, held_out = split_folders(root)
    if held_out is None:
        train, test = _divide(folder, test_fraction)
        return train, test, sorted({file.parent.name for file in train + test})
    train, test = _scan(folder), _scan(held_out)
    classes = sorted({file.parent.name for file in train})
    if unknown := sorted({file.parent.name for file in test}.difference(classes)):
        raise ValueError(
            f"path ({held_out}) has the classes {unknown}, which are not in {folder}; "
            "rename or remove them"
        )
    return train, test, classes


def _labels(files: list[Path], classes: list[str]) -> list[int]:
    label_of = {name: label for label, name in enumerate(classes)}
    return [label_of[file.parent.name] for file in files]


def _divide(root: Path, test_fraction: float) -> tuple[list[Path], list[Path]]:
    """Divide the files of one tree into train and test."""
    train: list[Path] = []
    test: list[Path] = []
    for file in _scan(root):
        name = file.relative_to(root).as_posix()
        (test if hash_text(name) < test_fraction else train).append(file)
    if not train or not test:
        empty = "train" if not train else "test"
        raise ValueError(
            f"test_fraction ({test_fraction}) leaves none of the {len(train) + len(test)} images "
            f"of {root} in the {empty} split; change it, or make train/ and test/"
        )
    return train, test


def _scan(root: Path) -> list[Path]:
    """List the images of a tree of classes in sorted order."""
    folders = sorted(
        entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not folders:
        raise ValueError(f"path ({root}) holds no folder; {_LAYOUT}")
    files: list[Path] = []
    unused = Counter({"loose": sum(file.suffix.lower() in EXTENSIONS for file in root.iterdir())})
    for folder in folders:
        entries = [file for file in folder.iterdir() if not file.name.startswith(".")]
        images = sorted(file for file in entries if file.suffix.lower() in EXTENSIONS)
        for entry in set(entries).difference(images):
            suffix = entry.suffix.lower()
            if entry.is_dir():
                deep = sum(file.suffix.lower() in EXTENSIONS for file in entry.rglob("[!.]*"))
                unused["in folders of a class"] += deep
            elif suffix in _OTHER_EXTENSIONS:
                unused[suffix] += 1
        if not images:
            raise ValueError(
                f"path ({folder}) holds no {SUFFIXES_TEXT}; "
                "put images of this class there, or remove the folder"
            )
        files += images
    if counts := [f"{count} {what}" for what, count in sorted(unused.items()) if count]:
        logger.warning(
            "path (%s): %d images are used, others are not: %s; %s",
            *(root, len(files), ", ".join(counts), _LAYOUT),
        )
    return files
