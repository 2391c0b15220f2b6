"""MNIST, or anything in its layout: 28 x 28 gray images of ten classes in an `.npz` file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Exists, Free, Ge, Structural
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit, check_pair, read_npz
from trainer.keras_objects import keras_home
from trainer.text import first_line


def mnist(
    *,
    path: Annotated[str | None, Exists("file"), Free(names_run=True)] = None,
    image_size: Annotated[list[Annotated[int, Ge(1)]] | None, Structural()] = None,
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset:
    """MNIST, 60,000 images for training and 10,000 for testing, 28 x 28 x 1, ten classes.

    Raises:
        FileNotFoundError: the file is not there and cannot be downloaded.
        ValueError: the file is not such an archive.
    """
    source = Path(path).expanduser() if path is not None else _download()
    data = read_npz(source, ("x_train", "y_train", "x_test", "y_test"))
    splits = {}
    for name in ("train", "test"):
        images = data[f"x_{name}"]
        labels = data[f"y_{name}"]
        check_pair(f"path ({source}), x_{name} and y_{name}", images, labels, (28, 28), 10)
        splits[name] = ArraySplit(images[..., None], labels)
    return ImageDataset(
        train=splits["train"],
        test=splits["test"],
        image_shape=(28, 28, 1),
        num_classes=10,
        image_size=image_size,
        augment=augment,
        normalize=normalize,
    )


def _download() -> Path:
    """Return the path of Keras' copy of MNIST, after downloading it if it is missing."""
    cached = keras_home() / "datasets" / "mnist.npz"
    if cached.is_file():
        return cached
    # Several workers of one machine may be here at a time: each downloads under its own name,
    # and the last one to finish puts its complete file in place.
    partial = cached.with_name(f"mnist-{os.getpid()}.npz")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        tf.keras.datasets.mnist.load_data(path=str(partial))
        os.replace(partial, cached)
    except Exception as error:  # Keras raises a bare Exception when there is no network
        raise FileNotFoundError(
            f"MNIST is not at {cached} and cannot be downloaded ({first_line(error)}); "
            "give dataset.path=<mnist.npz>"
        ) from error
    return cached
