"""Models with a training step of their own, as keras-io's guide has them."""

import keras
import tensorflow as tf


class CustomModel(tf.keras.Model):
    """tf_keras: the step is overridden."""

    def train_step(self, data):
        """Make one update on a batch."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class CustomLoss(keras.Model):
    """Keras 3: the loss is overridden."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the squared errors of the logits."""
        return keras.ops.mean(keras.ops.square(y_pred - keras.ops.one_hot(y, 10)))


def custom_model(input_shape, num_classes):
    """Build it by the functional API."""
    inputs = tf.keras.Input(shape=input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    return CustomModel(inputs, tf.keras.layers.Dense(num_classes)(x))
