"""Any folder of images with one sub-folder per class.

`train/`, `val/` and `test/` in it, each a tree of classes, are the splits. Otherwise a file
belongs to the test split if a hash of its relative path falls under `test_fraction`: files that are
added later move no other. Files are read while training; hidden ones are ignored, and a warning
counts the images that are not used: loose ones, those in deeper folders or of other formats.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Annotated

from trainer.annotations import Exists, Free, Ge, Gt, Le, Lt, Structural, takes
from trainer.datasets.images.image_files import FileSplit
from trainer.datasets.images.images import ImageDataset, ImageOptions, decoded_shape
from trainer.datasets.splits.paths import Paths, divided, find_splits, hash_files, visible_files

logger = logging.getLogger(__name__)

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
SUFFIXES_TEXT = ".jpg, .jpeg, .png, .bmp or .gif"
_OTHER_EXTENSIONS = (".webp", ".tif", ".tiff", ".heic", ".avif", ".jfif")
_LAYOUT = f"it must hold <class>/<name>{SUFFIXES_TEXT}, or such trees in train/ and test/"


@takes(ImageOptions)
def image_folder(
    options: ImageOptions,
    *,
    path: Annotated[str | None, Exists("directory"), Free(names_run=True)] = None,
    image_size: Annotated[list[Annotated[int, Ge(1)]], Structural()] = [224, 224],  # noqa: B006 - never changed
    channels: Annotated[int, Ge(1), Le(3), Structural()] = 3,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
) -> ImageDataset:
    """Images in folders: `<path>/<class>/<name>.jpg`, .png, ...; labels are the sorted classes.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is not such a tree.
    """
    shape = decoded_shape(image_size, channels)
    files = _splits(path, test_fraction)
    classes = sorted({file.parent.name for paths in files.values() for file in paths})
    labels = {name: label for label, name in enumerate(classes)}
    splits = {
        name: FileSplit(
            paths, [labels[path.parent.name] for path in paths], shape, **options.reading(name)
        )
        for name, paths in files.items()
    }
    return options.dataset(splits, image_shape=shape, num_classes=len(classes), class_names=classes)


def _splits(path: str | None, test_fraction: float) -> dict[str, list[Path]]:
    """Return the files of each split; those of a class are in a folder of its name."""
    splits = find_splits(path, None, _scan)
    classes = {file.parent.name for file in splits.train.files}
    for root, files in filter(None, splits[1:]):
        if unknown := sorted({file.parent.name for file in files}.difference(classes)):
            raise ValueError(
                f"path ({root}) has the classes {unknown}, which are not in {splits.train.root}; "
                "rename or remove them"
            )
    found = {name: files for name, (_, files) in splits.present.items()}
    return divided(found, partial(hash_files, depth=2), test_fraction, f"images of {path}")


def _scan(path: Paths, key: str) -> list[Path]:
    root = Path(str(path)).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{key} ({root}): no such folder; {_LAYOUT}")
    files: list[Path] = []
    others: list[Path] = []
    depth = len(root.parts) + 2
    for file in visible_files(root):
        suffix = file.suffix.lower()
        if suffix in EXTENSIONS and len(file.parts) == depth:
            files.append(file)
        elif suffix in EXTENSIONS or suffix in _OTHER_EXTENSIONS:
            others.append(file)
    classes = {file.parts[-2] for file in files}
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and folder.name[0] != "." and folder.name not in classes:
            raise ValueError(
                f"path ({folder}) holds no {SUFFIXES_TEXT}; "
                "put images of this class there, or remove the folder"
            )
    if not files:
        raise ValueError(f"path ({root}) holds no folder; {_LAYOUT}")
    if others:
        logger.warning(
            "path (%s): %d images are used, %d others are not, such as %s; %s",
            *(root, len(files), len(others), others[0].relative_to(root), _LAYOUT),
        )
    return files
