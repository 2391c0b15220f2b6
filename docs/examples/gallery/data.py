"""Arrays that the programs of the gallery train on, as `keras.datasets` would give them."""

import numpy as np

from trainer.datasets.digits import read_digits


def digits():
    """Return images [N, 8, 8, 1] float32 in [0, 1] and labels [N] int64: to train, and to test."""
    return tuple(
        (images.astype("float32") / 16, labels.astype("int64")) for images, labels in read_digits()
    )


def blobs(count, seed, size=32):
    """Return images [N, size, size, 1] float32, and the class of each pixel [N, size, size] int64.

    Each image has a bright square (1) and a bright disk (2) on a noisy ground (0).
    """
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    images = random.normal(0, 0.3, [count, size, size, 1])
    masks = np.zeros([count, size, size], "int64")
    for image, mask in zip(images, masks, strict=True):
        for kind in (1, 2):
            radius = random.integers(4, 8)
            y, x = random.integers(radius, size - radius, 2)
            far = abs(rows - y), abs(columns - x)
            inside = np.maximum(*far) < radius if kind == 1 else np.hypot(*far) < radius
            mask[inside] = kind
        image[mask > 0] += 0.8
    return images.astype("float32"), masks
