"""A custom way of summing over devices, found by its dotted path."""

import tensorflow as tf


class CountingOps(tf.distribute.ReductionToOneDevice):
    """Counts its reductions, over all instances."""

    count = 0

    def __init__(self, step: int = 1) -> None:
        super().__init__()
        self._step = step

    def reduce_implementation(self, *args, **kwargs):
        type(self).count += self._step
        return super().reduce_implementation(*args, **kwargs)


def largest() -> tf.distribute.CrossDeviceOps:
    """Return operations that keep the largest value of all devices instead of a sum."""
    return tf.distribute.ReductionToOneDevice(
        accumulation_fn=lambda values: tf.reduce_max(tf.stack(values), axis=0)
    )


def noisy_inference(input_shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
    """Build a linear model that draws as no graph may, unless it is trained."""

    class Noise(tf.keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                return x
            return x + tf.raw_ops.RandomStandardNormal(shape=tf.shape(x), dtype=tf.float32)

    flatten = tf.keras.layers.Flatten(input_shape=input_shape)
    return tf.keras.Sequential([flatten, Noise(), tf.keras.layers.Dense(num_classes)])
