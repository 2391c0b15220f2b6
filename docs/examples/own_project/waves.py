"""Your own dataset: a function that returns one. Its keyword arguments are `dataset.*`."""

from typing import Annotated

import numpy as np

from trainer.annotations import Ge
from trainer.datasets.splits.arrays import ArrayDataset, ArraySplit

SAMPLES = 64


def waves(
    *,
    num_examples: Annotated[int, Ge(10)] = 1000,
    noise: Annotated[float, Ge(0)] = 0.1,
):
    """Make sine, square and sawtooth waves of random phase; a fifth of them is the test split.

    Args:
        num_examples: waves in all.
        noise: standard deviation of the noise, where the waves go from -1 to 1.
    """
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, num_examples)
    phase = (np.linspace(0, 4, SAMPLES) + random.uniform(0, 1, (num_examples, 1))) % 1
    shapes = np.stack([np.sin(2 * np.pi * phase), np.sign(phase - 0.5), 2 * phase - 1])
    signals = shapes[labels, np.arange(num_examples)] + random.normal(
        0, noise, (num_examples, SAMPLES)
    )
    features = signals.astype(np.float32)[..., None]
    cut = num_examples * 4 // 5
    return ArrayDataset(
        train=ArraySplit(features[:cut], labels[:cut]),
        test=ArraySplit(features[cut:], labels[cut:]),
        input_shape=(SAMPLES, 1),
        num_classes=3,
    )
