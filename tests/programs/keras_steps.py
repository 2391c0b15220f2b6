"""Keras programs with steps of their own, of either Keras: `library` is `tf_keras` or `keras`.

Small versions of the patterns of keras.io's examples, written anew: variational autoencoder, GAN
with two optimizers, averaged weights.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

LATENT = 4


def vae(input_shape, num_classes, *, library: str = "tf_keras"):
    K: Any = importlib.import_module(library)

    class VAE(K.Model):
        def __init__(self, encoder, decoder):
            super().__init__()
            self.encoder, self.decoder = encoder, decoder
            self.trackers = {
                name: K.metrics.Mean(name=name) for name in ("loss", "reconstruction", "kl")
            }
            if library == "keras":
                self.seed = K.random.SeedGenerator(1)

        @property
        def metrics(self):
            return list(self.trackers.values())

        def sample(self, mean, log_variance):
            if library == "keras":
                noise = K.random.normal(tuple(mean.shape), seed=self.seed)
            else:
                noise = tf.random.normal(tf.shape(mean))
            return mean + tf.exp(0.5 * log_variance) * noise

        def losses_of(self, images):
            mean, log_variance = tf.split(self.encoder(images), 2, axis=1)
            decoded = self.decoder(self.sample(mean, log_variance))
            squares = tf.square(tf.reshape(images, [-1, 64]) - tf.reshape(decoded, [-1, 64]))
            reconstruction = tf.reduce_mean(tf.reduce_sum(squares, axis=1))
            kl = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
            return reconstruction, tf.reduce_mean(tf.reduce_sum(kl, axis=1))

        def report(self, reconstruction, kl):
            values = {"loss": reconstruction + kl, "reconstruction": reconstruction, "kl": kl}
            for name, tracker in self.trackers.items():
                tracker.update_state(values[name])
            return {name: tracker.result() for name, tracker in self.trackers.items()}

        @tf.function
        def train_step(self, data):
            images = data[0] if isinstance(data, tuple) else data
            with tf.GradientTape() as tape:
                reconstruction, kl = self.losses_of(images)
                loss = reconstruction + kl
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return self.report(reconstruction, kl)

        def test_step(self, data):
            images = data[0] if isinstance(data, tuple) else data
            return self.report(*self.losses_of(images))

    inputs = K.Input(input_shape)
    hidden = K.layers.Dense(32, activation="relu")(K.layers.Flatten()(inputs))
    encoder = K.Model(inputs, K.layers.Dense(2 * LATENT)(hidden))
    latents = K.Input([LATENT])
    hidden = K.layers.Dense(32, activation="relu")(latents)
    decoder = K.Model(latents, K.layers.Reshape(input_shape)(K.layers.Dense(64)(hidden)))
    model = VAE(encoder, decoder)
    model.compile(optimizer=K.optimizers.Adam(1e-3))
    return model


def gan(input_shape, num_classes, *, library: str = "tf_keras"):
    K: Any = importlib.import_module(library)

    class GAN(K.Model):
        def __init__(self, discriminator, generator):
            super().__init__()
            self.discriminator, self.generator = discriminator, generator
            if library == "keras":
                self.seed = K.random.SeedGenerator(2)

        def compile(self, d_optimizer, g_optimizer, loss_fn):
            super().compile()
            self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
            self.d_loss = K.metrics.Mean(name="d_loss")
            self.g_loss = K.metrics.Mean(name="g_loss")

        @property
        def metrics(self):
            return [self.d_loss, self.g_loss]

        def noise(self, count):
            if library == "keras":
                return K.random.normal((count, LATENT), seed=self.seed)
            return tf.random.normal([count, LATENT])

        def train_step(self, data):
            real = data[0] if isinstance(data, tuple) else data
            size = real.shape[0]
            generated = self.generator(self.noise(size))
            labels = tf.concat([tf.ones([size, 1]), tf.zeros([size, 1])], axis=0)
            with tf.GradientTape() as tape:
                scores = self.discriminator(tf.concat([generated, real], axis=0))
                d_loss = self.loss_fn(labels, scores)
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply_gradients(
                zip(tape.gradient(d_loss, weights), weights, strict=True)
            )
            with tf.GradientTape() as tape:
                scores = self.discriminator(self.generator(self.noise(size)))
                g_loss = self.loss_fn(tf.zeros([size, 1]), scores)
            weights = self.generator.trainable_weights
            self.g_optimizer.apply_gradients(
                zip(tape.gradient(g_loss, weights), weights, strict=True)
            )
            self.d_loss.update_state(d_loss)
            self.g_loss.update_state(g_loss)
            return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}

    layers = K.layers
    discriminator = K.Sequential(
        [K.Input(input_shape), layers.Flatten(), layers.Dense(32), layers.LeakyReLU(),
         layers.Dropout(0.2), layers.Dense(1)]
    )  # fmt: skip
    generator = K.Sequential(
        [K.Input([LATENT]), layers.Dense(32), layers.BatchNormalization(), layers.LeakyReLU(),
         layers.Dense(64, activation="sigmoid"), layers.Reshape(input_shape)]
    )  # fmt: skip
    model = GAN(discriminator, generator)
    model.compile(
        d_optimizer=K.optimizers.Adam(1e-3),
        g_optimizer=K.optimizers.Adam(2e-3),
        loss_fn=K.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


def averaging(input_shape, num_classes, *, library: str = "tf_keras"):
    """A classifier whose step also moves an average of its weights, and calls it twice."""
    K: Any = importlib.import_module(library)

    def network():
        layers = K.layers
        return K.Sequential(
            [K.Input(input_shape), layers.Flatten(), layers.Dense(16), layers.BatchNormalization(),
             layers.ReLU(), layers.Dense(num_classes, activation="softmax")]
        )  # fmt: skip

    class Averaging(K.Model):
        def __init__(self):
            super().__init__()
            self.network, self.average = network(), network()
            self.average.set_weights(self.network.get_weights())

        def call(self, images, training=False):
            return self.average(images, training=training)

        def train_step(self, data):
            images, labels = data
            with tf.GradientTape() as tape:
                predicted = self.network(images, training=True)
                mirrored = self.network(images[:, :, ::-1], training=True)
                loss = self.loss_of(labels, predicted) + self.loss_of(labels, mirrored)
            weights = self.network.trainable_weights
            gradients = tape.gradient(loss, weights)
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            for own, average in zip(self.network.weights, self.average.weights, strict=True):
                average.assign(0.9 * average + 0.1 * own)
            return {"loss": loss}

        def loss_of(self, labels, predicted):
            return tf.reduce_mean(K.losses.sparse_categorical_crossentropy(labels, predicted))

    model = Averaging()
    model.compile(K.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _layers(K, input_shape, num_classes):
    layers = K.layers
    return [
        K.Input(input_shape), layers.Flatten(), layers.Dense(16, activation="relu"),
        layers.Dense(num_classes, activation="softmax"),
    ]  # fmt: skip


def compiled(input_shape, num_classes, *, library: str = "tf_keras"):
    """A sequential model that is compiled."""
    K: Any = importlib.import_module(library)
    model = K.Sequential(_layers(K, input_shape, num_classes))
    model.compile(K.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def functional(input_shape, num_classes, *, library: str = "tf_keras"):
    """A functional model that is not compiled."""
    K: Any = importlib.import_module(library)
    inputs, *layers = _layers(K, input_shape, num_classes)
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    return K.Model(inputs, outputs)


def subclassed(input_shape, num_classes, *, library: str = "tf_keras"):
    """A subclassed model that is compiled."""
    K: Any = importlib.import_module(library)

    class Subclassed(K.Model):
        def __init__(self):
            super().__init__()
            _, *self.own_layers = _layers(K, input_shape, num_classes)

        def call(self, images):
            for layer in self.own_layers:
                images = layer(images)
            return images

    model = Subclassed()
    model.compile(K.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def added(input_shape, num_classes, *, library: str = "tf_keras"):
    """A compiled model of tf_keras with a layer that adds a loss and a metric."""
    K: Any = importlib.import_module(library)

    class Sizes(K.layers.Layer):
        def call(self, x):
            self.add_metric(tf.reduce_mean(tf.abs(x)), name="size")
            self.add_loss(0.001 * tf.reduce_mean(tf.square(x)))
            return x

    inputs, *layers = _layers(K, input_shape, num_classes)
    outputs = inputs
    for layer in [*layers[:-1], Sizes(), layers[-1]]:
        outputs = layer(outputs)
    model = K.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
