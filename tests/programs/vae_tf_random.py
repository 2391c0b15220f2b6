"""A variational autoencoder as in Keras' examples: a layer of its own draws with `tf.random`."""

import tensorflow as tf


class Sampling(tf.keras.layers.Layer):
    """Draw codes from their distribution, by one of TensorFlow's functions or of Keras' backend."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, inputs):
        """Draw a code for each example."""
        mean, log_variance = inputs
        batch, latent = tf.shape(mean)[0], tf.shape(mean)[1]
        if self.draw == "backend":
            noise = tf.keras.backend.random_normal(shape=(batch, latent))
        else:
            noise = tf.random.normal(shape=(batch, latent))
        return mean + tf.exp(0.5 * log_variance) * noise


def vae(input_shape, num_classes, *, draw: str = "function"):
    """Build a classifier whose hidden layer is the code of a variational autoencoder."""
    inputs = tf.keras.Input(input_shape)
    hidden = tf.keras.layers.Dense(16, activation="relu")(tf.keras.layers.Flatten()(inputs))
    mean = tf.keras.layers.Dense(4)(hidden)
    log_variance = tf.keras.layers.Dense(4)(hidden)
    code = Sampling(draw)([mean, log_variance])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes)(code))
