"""CIFAR-10 from its official Python version: the folder `cifar-10-batches-py`, or its archive."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from trainer.annotations import Exists, Free, Ge, Structural
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit, check_pair
from trainer.keras_objects import keras_home

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"  # of the archive
CACHED = ("cifar-10-batches-py", "cifar-10-batches-py.tar.gz", "cifar-10-python.tar.gz")
"""Names of the folder and the archive in Keras' cache; the last one is that of the download."""
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar10(
    *,
    path: Annotated[str | None, Exists(), Free(names_run=True)] = None,
    image_size: Annotated[list[Annotated[int, Ge(1)]] | None, Structural()] = None,
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset:
    """CIFAR-10, 50,000 images for training and 10,000 for testing, 32 x 32 x 3, ten classes.

    Raises:
        FileNotFoundError: the folder, the archive or one of its files is not there.
        ValueError: a file is not what the official version holds.
    """
    source = _find_cached() if path is None else Path(path).expanduser()
    contents = _read_files(source, (*TRAIN_FILES, TEST_FILE))
    batches = {
        name: _decode(content, f"path ({source}), {name}") for name, content in contents.items()
    }
    train = [batches[name] for name in TRAIN_FILES]
    return ImageDataset(
        train=ArraySplit(
            np.concatenate([images for images, _ in train]),
            np.concatenate([labels for _, labels in train]),
        ),
        test=ArraySplit(*batches[TEST_FILE]),
        image_shape=(32, 32, 3),
        num_classes=10,
        class_names=CLASSES,
        image_size=image_size,
        augment=augment,
        normalize=normalize,
    )


def _find_cached() -> Path:
    """Return the folder or the archive in Keras' cache."""
    cache = keras_home() / "datasets"
    source = next((cache / name for name in CACHED if (cache / name).exists()), None)
    if source is None:
        raise FileNotFoundError(
            f"CIFAR-10 is not in {cache}: none of {', '.join(CACHED)}; put {URL} (170 MB, SHA-256 "
            f"{SHA256}) there, or give dataset.path=<the folder or the archive>"
        )
    if source.is_file():
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise ValueError(
                f"{source} is damaged: its SHA-256 is {digest}, that of {URL} is {SHA256}; "
                "download it again"
            )
    return source


def _read_files(source: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read the files called `names` from a folder, or from an archive in one pass."""
    if not source.exists():
        raise FileNotFoundError(
            f"CIFAR-10 is not at {source}; give dataset.path=<the folder cifar-10-batches-py, "
            f"or its archive {URL}>"
        )
    contents = {}
    try:
        if source.is_dir():
            contents = {x.name: x.read_bytes() for x in source.iterdir() if x.name in names}
        else:
            with tarfile.open(source) as archive:
                for member in archive:
                    name = Path(member.name).name
                    if name in names and (file := archive.extractfile(member)):
                        contents[name] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(
            f"path ({source}) cannot be read: {error}; was the download of {URL} cut short?"
        ) from error
    if missing := [name for name in names if name not in contents]:
        raise FileNotFoundError(
            f"path ({source}) lacks {', '.join(missing)}; "
            "it must be the folder cifar-10-batches-py or its archive"
        )
    return contents


def _decode(content: bytes, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images [N, 32, 32, 3] uint8 and labels [N] int64 of one pickled batch."""
    try:
        # The official files were written by Python 2, whose strings are bytes.
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        rows = np.asarray(batch[b"data"])
        labels = np.asarray(batch[b"labels"])
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(
            f"{source} is not a batch of CIFAR-10: {type(error).__name__}: {error}"
        ) from error
    check_pair(source, rows, labels, (3072,), 10)
    # Planes of red, green and blue, each of them row by row.
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


_ALLOWED = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}


class _Unpickler(pickle.Unpickler):
    """Unpickles plain values and arrays of NumPy: a pickle may name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != "numpy" or name not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it requests {module}.{name}, which a batch of images has no use for"
            )
        return _ALLOWED[name]
