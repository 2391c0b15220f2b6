"""Mixup and CutMix: an example and its neighbor in the batch become one, with both labels.

Examples 0 and 1 of a batch are a pair, then 2 and 3, and so on: the order of samples is random
again in each epoch, and so are the pairs. Each replica's part starts at an even position, so the
pairs are the same on any number of replicas, and nothing is read twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

GROUP_SIZE = 2
DRAWS = 5  # random numbers of an example: mixup or CutMix, the share, its side, down, across

_POINTS = 1024  # of the table of a Beta distribution


class Mixing:
    """Blends pairs of examples (Zhang et al. 2018), or pastes a box of one into the other.

    The options are the parameters of the Beta distributions; 0: none. With both, each has half of
    the examples.
    """

    def __init__(self, mixup: float, cutmix: float) -> None:
        self._mixup = mixup
        self._cutmix = cutmix

    def apply(self, batch: dict[str, Any], draws: tf.Tensor, num_classes: int) -> dict[str, Any]:
        """Return the batch with mixed `features`, and `label` as the fractions of the classes.

        Nothing of an example of weight 0 is mixed in: it has no image.

        Args:
            batch: with `features` [B, H, W, C], B even, and `label` [B] integers.
            draws: [B, DRAWS] float32 in [0, 1).

        Returns:
            `label` is [B, num_classes] float32; its rows add up to 1.
        """
        images = batch["features"]
        other = swap(images)
        is_there = swap(batch["weight"]) > 0.0 if "weight" in batch else True
        share = tf.zeros_like(draws[:, 0])  # the other's
        mixed = images
        if self._mixup:
            share = tf.where(is_there, beta(draws[:, 1], draws[:, 2], self._mixup), 0.0)
            mixed = images + share[:, None, None, None] * (other - images)
        if self._cutmix:
            chosen = draws[:, 0] < (0.5 if self._mixup else 1.0)
            area = tf.where(is_there, beta(draws[:, 1], draws[:, 2], self._cutmix), 0.0)
            box, box_share = random_box(images.shape[1:3], area, draws)
            mixed = tf.where(chosen[:, None, None, None] & ~box[..., None], images, mixed)
            mixed = tf.where(chosen[:, None, None, None] & box[..., None], other, mixed)
            share = tf.where(chosen, box_share, share)
        labels = tf.one_hot(batch["label"], num_classes)
        shares = labels + share[:, None] * (swap(labels) - labels)
        return {**batch, "features": mixed, "label": shares}


def swap(x: tf.Tensor) -> tf.Tensor:
    """Return [B, ...] with the two examples of each pair exchanged."""
    pairs = tf.reshape(x, [x.shape[0] // 2, 2, *x.shape[1:]])
    return tf.reshape(tf.reverse(pairs, axis=[1]), x.shape)


def beta(draw: tf.Tensor, side: tf.Tensor, parameter: float) -> tf.Tensor:
    """Return numbers from Beta(parameter, parameter) of draws in [0, 1), all [B] float32.

    By a table of the quantiles below 0.5; `side` decides whether the number is above.
    """
    table = tf.constant(_quantiles(parameter))
    place = draw * (_POINTS - 1)
    lower = tf.cast(place, tf.int32)
    low = tf.gather(table, lower)
    high = tf.gather(table, tf.minimum(lower + 1, _POINTS - 1))
    below = low + (place - tf.cast(lower, tf.float32)) * (high - low)
    return tf.where(side < 0.5, below, 1.0 - below)


def _quantiles(parameter: float) -> np.ndarray:
    """Return the quantiles of min(x, 1 - x), x of the distribution, [_POINTS] float32."""
    # With t = w^(1/parameter) the density's pole at 0 is gone.
    w = np.linspace(0.0, 0.5**parameter, 16 * _POINTS)
    t = w ** (1.0 / parameter)
    density = (1.0 - t) ** (parameter - 1.0)
    areas = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    powers = np.interp(np.linspace(0.0, 1.0, _POINTS), areas / areas[-1], w)
    return (powers ** (1.0 / parameter)).astype(np.float32)


def random_box(
    size: tuple[int, int], area: tf.Tensor, draws: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a box of a share, [B] float32, of the image, its middle anywhere.

    Returns:
        Which pixels are in the box, [B, height, width] bool, and their share, [B] float32.
    """
    masks = []
    lengths = []
    for axis, length in enumerate(size):
        half = tf.sqrt(area) * (length / 2)
        middle = draws[:, 3 + axis] * length
        start = tf.cast(tf.round(tf.maximum(middle - half, 0.0)), tf.int32)[:, None]
        end = tf.cast(tf.round(tf.minimum(middle + half, float(length))), tf.int32)[:, None]
        places = tf.range(length)[None]
        masks.append((places >= start) & (places < end))
        lengths.append(tf.cast(end - start, tf.float32)[:, 0] / length)
    return masks[0][:, :, None] & masks[1][:, None, :], lengths[0] * lengths[1]
