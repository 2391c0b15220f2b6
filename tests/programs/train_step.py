"""A model with a training step of its own, as keras-io's guide has them."""

import tensorflow as tf


class CustomModel(tf.keras.Model):
    """tf_keras: the step is overridden."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def custom_model(input_shape, num_classes):
    inputs = tf.keras.Input(shape=input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    return CustomModel(inputs, tf.keras.layers.Dense(num_classes)(x))
