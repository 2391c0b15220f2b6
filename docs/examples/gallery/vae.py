"""After keras.io's "Variational AutoEncoder": a `train_step` with three trackers.

Changed for Steadfast: the model and the data are made by functions, and `vae.fit(...)` became
`conf/experiment/vae.yaml`. The steps stay.
"""

import keras
import tensorflow as tf
from data import digits
from keras import layers, ops

LATENT = 2


class Sampling(layers.Layer):
    """Draws from the distribution that the encoder describes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    """An encoder and a decoder, trained together."""

    def __init__(self, encoder, decoder, **options):
        super().__init__(**options)
        self.encoder = encoder
        self.decoder = decoder
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction_loss")
        self.divergence = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total, self.reconstruction, self.divergence]

    def losses_of(self, images):
        """Return what the decoder misses of the images, and how far the latents are from normal."""
        mean, log_variance, latents = self.encoder(images)
        missed = keras.losses.binary_crossentropy(images, self.decoder(latents))
        reconstruction = ops.mean(ops.sum(missed, axis=(1, 2)))
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        return reconstruction, ops.mean(ops.sum(divergence, axis=1))

    def report(self, reconstruction, divergence):
        """Return the metrics, with what a step adds to them."""
        self.total.update_state(reconstruction + divergence)
        self.reconstruction.update_state(reconstruction)
        self.divergence.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, images):
        with tf.GradientTape() as tape:
            reconstruction, divergence = self.losses_of(images)
            loss = reconstruction + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.report(reconstruction, divergence)

    def test_step(self, images):
        return self.report(*self.losses_of(images))


def model():
    """Return the compiled autoencoder."""
    images = keras.Input([8, 8, 1])
    x = layers.Conv2D(32, 3, activation="relu", strides=2, padding="same")(images)
    x = layers.Flatten()(x)
    x = layers.Dense(32, activation="relu")(x)
    mean = layers.Dense(LATENT, name="mean")(x)
    log_variance = layers.Dense(LATENT, name="log_variance")(x)
    latents = Sampling()([mean, log_variance])
    encoder = keras.Model(images, [mean, log_variance, latents], name="encoder")

    inputs = keras.Input([LATENT])
    x = layers.Dense(4 * 4 * 32, activation="relu")(inputs)
    x = layers.Reshape([4, 4, 32])(x)
    x = layers.Conv2DTranspose(32, 3, activation="relu", strides=2, padding="same")(x)
    outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    decoder = keras.Model(inputs, outputs, name="decoder")

    vae = VAE(encoder, decoder)
    vae.compile(optimizer=keras.optimizers.Adam(3e-3))
    return vae


def data():
    """Return images alone: to train, and to test."""
    (train, _), (test, _) = digits()
    return (train,), (test,)
