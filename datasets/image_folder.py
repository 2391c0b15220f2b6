"""Any folder of images sorted into one sub-folder a class."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from trainer.datasets.image_files import BadFiles, FileSplit
from trainer.datasets.images import ImageDataset, check_size

EXTENSIONS = (".jpg", ".jpeg", ".png")
_LAYOUT = "it must hold <class>/<name>.jpg, .jpeg or .png, or such trees in train/ and test/"


def image_folder(
    *,
    path: Annotated[str | None, "directory"] = None,
    image_size: Annotated[list[int], "each: >= 1"] = [224, 224],  # noqa: B006 - never changed, and a YAML list by default
    channels: Annotated[int, ">= 1, <= 3"] = 3,
    antialias: bool = False,
    test_fraction: Annotated[float, "> 0, < 1"] = 0.1,
    max_bad: Annotated[int, ">= 0"] = 0,
    flip: bool = False,
    crop: Annotated[int, ">= 0"] = 0,
    brightness: Annotated[float, ">= 0, <= 1"] = 0.0,
    mean: list[float] | None = None,
    std: Annotated[list[float] | None, "each: > 0"] = None,
) -> ImageDataset:
    """Images in folders: `<path>/<class>/<name>.jpg`, or .jpeg, or .png. The sorted names of the classes are the labels.

    With `train/` and `test/` (or `val/`) in `path`, each a tree of classes, they are the splits. Otherwise a file belongs to
    the test split if a hash of its path, relative to the tree, falls under `test_fraction`: files that are added later
    move no other. Files are read while training; loose files, hidden ones and other kinds are left alone.

    Args:
        path: the folder.
        image_size: [height, width] that every image is resized to, whatever its own proportions.
        channels: 3 for colour, 1 for grey; files are converted.
        antialias: whether to average when an image is made smaller; finer, at twice the time to decode.
        test_fraction: about which share of the images to test on if there is no `test/` or `val/`.
        max_bad: how many different broken files to skip, in each process, before it is an error.
        flip: in training, mirror half of the images.
        crop: in training, shift each image by up to so many pixels.
        brightness: in training, change each image's brightness by up to so much, of 1.
        mean: subtract this, one number or one per channel.
        std: then divide by this, one number or one per channel.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is not such a tree.
    """
    check_size(image_size)
    if channels not in (1, 3):
        raise ValueError(f"channels ({channels}) must be 1 or 3")
    if path is None:
        raise ValueError(f"path (null) must name a folder of images; {_LAYOUT}")
    train, test, classes = _splits(Path(path).expanduser(), test_fraction)
    shape = (image_size[0], image_size[1], channels)
    labels = {name: label for label, name in enumerate(classes)}
    bad = BadFiles(max_bad)
    return ImageDataset(
        train=FileSplit(train, [labels[file.parent.name] for file in train], shape, antialias=antialias, bad=bad),
        test=FileSplit(test, [labels[file.parent.name] for file in test], shape, antialias=antialias, bad=bad),
        image_shape=shape,
        num_classes=len(classes),
        class_names=classes,
        antialias=antialias,
        flip=flip,
        crop=crop,
        brightness=brightness,
        mean=mean,
        std=std,
    )


def _splits(root: Path, test_fraction: float) -> tuple[list[Path], list[Path], list[str]]:
    """Gives the files to train on, those to test on, and the sorted names of the classes."""
    if not root.is_dir():
        raise FileNotFoundError(f"path ({root}): no such folder; {_LAYOUT}")
    held_out = next((folder for name in ("test", "val") if (folder := root / name).is_dir()), None)
    if not (root / "train").is_dir():
        if held_out is not None:
            raise ValueError(f"path ({root}) has {held_out.name}/ but no train/; {_LAYOUT}")
        train, test = _divide(root, test_fraction)
    elif held_out is None:
        train, test = _divide(root / "train", test_fraction)
    else:
        train, test = _scan(root / "train"), _scan(held_out)
    classes = sorted({file.parent.name for file in train})
    if held_out is None:
        classes = sorted({file.parent.name for file in train + test})
    elif unknown := sorted({file.parent.name for file in test}.difference(classes)):
        raise ValueError(f"path ({held_out}) has the classes {unknown}, which are not in {root / 'train'}; rename or remove them")
    return train, test, classes


def _divide(root: Path, test_fraction: float) -> tuple[list[Path], list[Path]]:
    """Divides the files of one tree into train and test."""
    train: list[Path] = []
    test: list[Path] = []
    for file in _scan(root):
        (test if _position(file.relative_to(root)) < test_fraction else train).append(file)
    if not train or not test:
        lacking = "train" if not train else "test"
        raise ValueError(
            f"test_fraction ({test_fraction}) leaves none of the {len(train) + len(test)} images of {root} in the {lacking} split; "
            "change it, or make train/ and test/"
        )
    return train, test


def _position(relative: Path) -> float:
    """Gives a number in [0, 1) that follows from the relative path alone, alike on every machine."""
    digest = hashlib.sha256(relative.as_posix().encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _scan(root: Path) -> list[Path]:
    """Lists the images of a tree of classes in sorted order."""
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise ValueError(f"path ({root}) holds no folder; {_LAYOUT}")
    files: list[Path] = []
    for folder in folders:
        images = sorted(file for file in folder.iterdir() if file.suffix.lower() in EXTENSIONS and not file.name.startswith("."))
        if not images:
            raise ValueError(f"path ({folder}) holds no .jpg, .jpeg or .png; put images of this class there, or remove the folder")
        files += images
    return files
