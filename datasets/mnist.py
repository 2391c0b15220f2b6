"""MNIST, or anything in its layout: 28 x 28 grey images of ten classes in an `.npz` file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tensorflow as tf

from trainer.datasets.arrays import ArraySplit, check_pair, read_npz
from trainer.datasets.images import ImageDataset

KERAS_CACHE = "~/.keras/datasets/mnist.npz"


def mnist(
    *,
    path: Annotated[str | None, "file"] = None,
    flip: bool = False,
    crop: Annotated[int, ">= 0"] = 0,
    brightness: Annotated[float, ">= 0, <= 1"] = 0.0,
    mean: list[float] | None = None,
    std: Annotated[list[float] | None, "each: > 0"] = None,
    image_size: Annotated[list[int] | None, "each: >= 1"] = None,
) -> ImageDataset:
    """MNIST, 60,000 images for training and 10,000 for testing, 28 x 28 x 1, ten classes.

    Args:
        path: an `.npz` file with `x_train`, `x_test` [N, 28, 28] uint8 and `y_train`, `y_test` [N] integers; None is the
            file that Keras downloads, and downloads it if it is not there.
        flip: in training, mirror half of the images.
        crop: in training, shift each image by up to so many pixels.
        brightness: in training, change each image's brightness by up to so much, of 1.
        mean: subtract this, one number or one per channel.
        std: then divide by this, one number or one per channel.
        image_size: resize to [height, width].

    Raises:
        FileNotFoundError: the file is not there and cannot be downloaded.
        ValueError: the file is not such an archive.
    """
    source = Path(path).expanduser() if path is not None else _downloaded()
    data = read_npz(source, ("x_train", "y_train", "x_test", "y_test"))
    splits = {}
    for name in ("train", "test"):
        images, labels = data[f"x_{name}"], data[f"y_{name}"]
        check_pair(f"path ({source}), x_{name} and y_{name}", images, labels, (28, 28), 10)
        splits[name] = ArraySplit(images[..., None], labels)
    return ImageDataset(
        train=splits["train"],
        test=splits["test"],
        image_shape=(28, 28, 1),
        num_classes=10,
        image_size=image_size,
        flip=flip,
        crop=crop,
        brightness=brightness,
        mean=mean,
        std=std,
    )


def _downloaded() -> Path:
    """Gives the path of Keras' copy of MNIST, downloading it first if need be."""
    cached = Path(KERAS_CACHE).expanduser()
    if cached.is_file():
        return cached
    # Several workers of one machine may get here at once: each downloads under a name of its own, and the last one to
    # finish puts its complete file in place.
    partial = cached.with_name(f"mnist-{os.getpid()}.npz")
    try:
        tf.keras.datasets.mnist.load_data(path=str(partial))
        os.replace(partial, cached)
    except Exception as error:  # Keras raises a bare Exception when there is no network
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(
            f"MNIST is not at {KERAS_CACHE} and cannot be downloaded ({reason}); give dataset.path=<mnist.npz>"
        ) from error
    return cached
