"""Decoding of a batch of images in the graph, in parallel, with damaged ones told apart."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


def decode_batch(
    examples: tuple[tf.Tensor, ...],
    decode: Callable[..., tf.Tensor],
    image_shape: tuple[int, int, int],
    dtype: tf.DType,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode images, and find those that cannot be decoded.

    A batch is decoded as a whole, in parallel. Only if that fails is it decoded again, one by one,
    to find the damaged images, so intact ones cost nothing extra. A failed batch has no first
    element: after an error the rest of it is shorter than B.

    Args:
        examples: the arguments of `decode` for each image, each [B, ...].
        decode: returns the pixels of one image, or raises InvalidArgumentError at run time.
        image_shape: their shape.
        dtype: their type.

    Returns:
        The images, [B, *image_shape], black where they are damaged, and whether each is good, [B]
        bool.
    """
    batch_size = tf.shape(examples[0], out_type=tf.int64)[0]

    def decode_or_blank(*example: tf.Tensor) -> tf.data.Dataset:
        decoded = tf.data.Dataset.from_tensors(example).map(lambda *one: (decode(*one), True))
        blank = tf.data.Dataset.from_tensors((tf.zeros(image_shape, dtype), False))
        return decoded.ignore_errors().concatenate(blank).take(1)

    slices = tf.data.Dataset.from_tensor_slices(examples)
    whole = slices.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    whole = whole.batch(batch_size, drop_remainder=True).map(
        lambda images: (images, tf.ones([batch_size], tf.bool))
    )
    singly = slices.flat_map(decode_or_blank).batch(batch_size)
    images, good = whole.ignore_errors().concatenate(singly).take(1).get_single_element()
    images.set_shape([examples[0].shape[0], *image_shape])
    good.set_shape([examples[0].shape[0]])
    return images, good
