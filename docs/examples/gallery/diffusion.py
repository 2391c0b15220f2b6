"""After keras.io's "Denoising Diffusion Implicit Models": the step assigns an average of weights.

Changed for Steadfast: the model and the data are made by functions, the model function adapts the
normalization (`adapt` was called in the script), and `model.fit(...)` became
`conf/experiment/diffusion.yaml`. The steps, their draws and `ema_weight.assign(...)` stay.
"""

import math

import keras
import tensorflow as tf
from data import digits
from keras import layers, ops

SIZE = 8
EMBEDDING = 16
EMA = 0.98
DIFFUSION_STEPS = 10


@keras.saving.register_keras_serializable()
def sinusoids(x):
    """Return waves of the noise's variance, [B, 1, 1, EMBEDDING]."""
    frequencies = ops.exp(ops.linspace(0.0, math.log(1000.0), EMBEDDING // 2))
    angles = ops.cast(2.0 * math.pi * frequencies, "float32") * x
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=3)


def residual(x, width):
    """Return what two convolutions add to x."""
    shortcut = x if x.shape[3] == width else layers.Conv2D(width, 1)(x)
    x = layers.BatchNormalization(center=False, scale=False, momentum=0.9)(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(width, 3, padding="same")(x)
    return layers.Add()([x, shortcut])


def denoiser():
    """Return the network from noisy images and variances to the noise."""
    noisy = keras.Input([SIZE, SIZE, 1])
    variances = keras.Input([1, 1, 1])
    waves = layers.Lambda(sinusoids, output_shape=(1, 1, EMBEDDING))(variances)
    waves = layers.UpSampling2D(SIZE)(waves)
    x = layers.Conv2D(16, 1)(noisy)
    x = layers.Concatenate()([x, waves])
    x = top = residual(x, 16)
    x = layers.AveragePooling2D(2)(x)
    x = residual(x, 32)
    x = layers.UpSampling2D(2)(x)
    x = residual(layers.Concatenate()([x, top]), 16)
    return keras.Model([noisy, variances], layers.Conv2D(1, 1, kernel_initializer="zeros")(x))


class DiffusionModel(keras.Model):
    """Learns to take noise from images, and makes images of noise."""

    def __init__(self, images):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.normalizer.adapt(images)
        self.network = denoiser()
        self.ema_network = keras.models.clone_model(self.network)
        self.ema_network.set_weights(self.network.get_weights())
        self.seed_generator = keras.random.SeedGenerator(7)

    def compile(self, **options):
        super().compile(**options)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.score_tracker = keras.metrics.Mean(name="energy_score")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.score_tracker]

    def schedule(self, times):
        """Return the shares of noise and signal at times from 0 to 1."""
        start, end = math.acos(0.95), math.acos(0.02)
        angles = start + times * (end - start)
        return ops.sin(angles), ops.cos(angles)

    def denoise(self, noisy, noise_rates, signal_rates, training):
        """Return the noise that is in images, and what is left without it."""
        network = self.network if training else self.ema_network
        noises = network([noisy, noise_rates**2], training=training)
        return noises, (noisy - noise_rates * noises) / signal_rates

    def generate(self, count):
        """Return images made of noise, [count, SIZE, SIZE, 1]."""
        noisy = keras.random.normal([count, SIZE, SIZE, 1], seed=self.seed_generator)
        images = noisy
        for step in range(DIFFUSION_STEPS):
            times = ops.ones([count, 1, 1, 1]) - step / DIFFUSION_STEPS
            noises, images = self.denoise(noisy, *self.schedule(times), training=False)
            noise_rates, signal_rates = self.schedule(times - 1 / DIFFUSION_STEPS)
            noisy = signal_rates * images + noise_rates * noises
        return ops.clip(self.normalizer.mean + images * self.normalizer.variance**0.5, 0.0, 1.0)

    def noise_loss(self, images, training):
        """Return how well the noise is found in images, and add it to the metric."""
        images = self.normalizer(images, training=training)
        count = ops.shape(images)[0]
        noises = keras.random.normal(ops.shape(images), seed=self.seed_generator)
        times = keras.random.uniform([count, 1, 1, 1], seed=self.seed_generator)
        noise_rates, signal_rates = self.schedule(times)
        noisy = signal_rates * images + noise_rates * noises
        found, _ = self.denoise(noisy, noise_rates, signal_rates, training)
        return self.loss(noises, found)

    def train_step(self, images):
        with tf.GradientTape() as tape:
            noise_loss = self.noise_loss(images, training=True)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(EMA * ema_weight + (1 - EMA) * weight)
        return {"n_loss": self.noise_loss_tracker.result()}

    def test_step(self, images):
        self.noise_loss_tracker.update_state(self.noise_loss(images, training=False))
        one, two = (self.generate(ops.shape(images)[0]) for _ in range(2))
        self.score_tracker.update_state(apart(images, one) - 0.5 * apart(one, two))
        return {metric.name: metric.result() for metric in self.metrics}


def apart(a, b):
    """Return the distance of each image to the one beside it, [B]."""
    return ops.sqrt(ops.sum(ops.square(a - b), axis=(1, 2, 3)))


def model():
    """Return the compiled model."""
    (images, _), _ = digits()
    diffusion = DiffusionModel(images)
    diffusion.compile(optimizer=keras.optimizers.Adam(2e-3), loss=keras.losses.MeanAbsoluteError())
    return diffusion


def data():
    """Return images alone: to train, and to test."""
    (train, _), (test, _) = digits()
    return (train,), (test,)
