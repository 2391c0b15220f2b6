"""After keras.io's "WGAN-GP overriding Model.train_step": two optimizers, three critic steps.

Changed for Steadfast: the model and the data are made by functions, and `wgan.fit(...)` became
`conf/experiment/wgan_gp.yaml`, which names the callback too. The step and its draws stay.
"""

import keras
import tensorflow as tf
from data import digits
from keras import layers

LATENT = 16


class WGAN(keras.Model):
    """A generator, and the critic that measures how far its images are from real ones."""

    def __init__(self, discriminator, generator, discriminator_extra_steps=3, gp_weight=10.0):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_steps = discriminator_extra_steps
        self.gp_weight = gp_weight

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, count, real, generated):
        """Return how far the critic's slope is from 1 between real and generated images."""
        mix = tf.random.uniform([count, 1, 1, 1])
        between = real + mix * (generated - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.discriminator(between, training=True)
        slopes = tape.gradient(scores, between)
        norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=[1, 2, 3]) + 1e-12)
        return tf.reduce_mean((norms - 1.0) ** 2)

    def train_step(self, real):
        count = tf.shape(real)[0]
        for _ in range(self.d_steps):
            noise = tf.random.normal([count, LATENT])
            with tf.GradientTape() as tape:
                generated = self.generator(noise, training=True)
                wrong = self.discriminator(generated, training=True)
                right = self.discriminator(real, training=True)
                cost = self.d_loss_fn(right, wrong)
                d_loss = cost + self.gp_weight * self.gradient_penalty(count, real, generated)
            weights = self.discriminator.trainable_variables
            self.d_optimizer.apply_gradients(
                zip(tape.gradient(d_loss, weights), weights, strict=True)
            )
        noise = tf.random.normal([count, LATENT])
        with tf.GradientTape() as tape:
            g_loss = self.g_loss_fn(
                self.discriminator(self.generator(noise, training=True), training=True)
            )
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}

    def test_step(self, real):
        """Return the energy score of what is generated: less is nearer to the real images."""
        count = tf.shape(real)[0]
        one, two = (
            self.generator(tf.random.normal([count, LATENT]), training=False) for _ in range(2)
        )
        return {"energy_score": tf.reduce_mean(apart(real, one) - 0.5 * apart(one, two))}


def apart(a, b):
    """Return the distance of each image to the one beside it, [B]."""
    return tf.sqrt(tf.reduce_sum(tf.square(a - b), axis=[1, 2, 3]))


class GANMonitor(keras.callbacks.Callback):
    """Writes a picture of what is generated at the end of each fifth epoch."""

    def __init__(self):
        super().__init__()
        self.latents = keras.random.normal([8, LATENT], seed=1)

    def on_epoch_end(self, epoch, logs=None):
        if epoch % 5 == 4:
            images = self.model.generator(self.latents, training=False)
            row = tf.concat(list(images), axis=1)
            keras.utils.save_img(f"generated_{epoch + 1:02d}.png", row)


def critic_loss(right, wrong):
    """Return the critic's loss."""
    return tf.reduce_mean(wrong) - tf.reduce_mean(right)


def generator_loss(scores):
    """Return the generator's loss."""
    return -tf.reduce_mean(scores)


def model():
    """Return the compiled pair."""
    discriminator = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(32, 3, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(64, 3, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(1),
        ],
        name="discriminator",
    )
    generator = keras.Sequential(
        [
            keras.Input([LATENT]),
            layers.Dense(4 * 4 * 32, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.LeakyReLU(0.2),
            layers.Reshape([4, 4, 32]),
            layers.UpSampling2D(2),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.LeakyReLU(0.2),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )
    wgan = WGAN(discriminator, generator)
    wgan.compile(
        d_optimizer=keras.optimizers.Adam(1e-3, beta_1=0.5, beta_2=0.9),
        g_optimizer=keras.optimizers.Adam(1e-3, beta_1=0.5, beta_2=0.9),
        d_loss_fn=critic_loss,
        g_loss_fn=generator_loss,
    )
    return wgan


def data():
    """Return images alone: to train, and to test."""
    (train, _), (test, _) = digits()
    return (train,), (test,)
