"""The task contract: a step with two models and two optimizers, and the classification task's numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.training import assert_same_bits, engine, train, variables, weights
from trainer.protocols import Batch, Metrics, Parts
from trainer.step import PerExample, Step
from trainer.tasks.classification import Classification


class Gan:
    """A generator of 8 x 8 images against a discriminator, each with an optimizer of its own (Goodfellow et al. 2014)."""

    metrics = ("loss", "discriminator_loss")

    def __init__(self, *, latent: int = 4, dropout: float = 0.2) -> None:
        self.latent, self.dropout = latent, dropout

    def build(self, parts: Parts) -> None:
        layers, shape = tf.keras.layers, parts.input_shape
        generator = [
            layers.Dense(16, "relu", input_shape=(self.latent,)),
            layers.Dense(int(np.prod(shape)), "sigmoid"),
            layers.Reshape(shape),
        ]
        discriminator = [layers.Flatten(input_shape=shape), layers.Dense(16, "relu"), layers.Dropout(self.dropout), layers.Dense(1)]
        self.models = {"generator": tf.keras.Sequential(generator), "discriminator": tf.keras.Sequential(discriminator)}
        self.optimizers = {name: parts.optimizer() for name in self.models}

    def train_step(self, batch: Batch, step: Step) -> Metrics:
        # Noise that belongs to the example, not to the replica: the same on any number of replicas.
        noise = tf.cos(tf.cast(batch["id"], tf.float32)[:, None] * tf.range(1.0, self.latent + 1) + tf.cast(step.index, tf.float32))
        batch = {**batch, "noise": noise}
        judged = step.minimize(self._discriminator_loss, batch, self.models["discriminator"], self.optimizers["discriminator"])
        made = step.minimize(self._generator_loss, batch, self.models["generator"], self.optimizers["generator"])
        return {"loss": made["loss"], "discriminator_loss": judged["loss"]}

    def eval_step(self, batch: Batch) -> PerExample:
        batch = {**batch, "noise": tf.zeros([tf.shape(batch["features"])[0], self.latent])}
        return self._generator_loss(batch, training=False)[0], {"discriminator_loss": self._discriminator_loss(batch, training=False)[0]}

    def _judge(self, images: tf.Tensor, real: float, training: bool) -> tf.Tensor:
        logits = self.models["discriminator"](images, training=training)[:, 0]
        return tf.nn.sigmoid_cross_entropy_with_logits(tf.fill(tf.shape(logits), real), logits)

    def _discriminator_loss(self, batch: Batch, training: bool = True) -> PerExample:
        fakes = self.models["generator"](batch["noise"], training=training)
        return self._judge(batch["features"], 1.0, training) + self._judge(fakes, 0.0, training), {}

    def _generator_loss(self, batch: Batch, training: bool = True) -> PerExample:
        return self._judge(self.models["generator"](batch["noise"], training=training), 1.0, training), {}


GAN = ["task._target_=tests.test_tasks.Gan", "~task.label_smoothing", "optimizer=sgd", "train.clip_norm=1"]


def test_two_models_and_two_optimizers_train_and_both_change(tmp_path):
    made = engine(tmp_path, *GAN)
    before = variables(made)
    made.train(lambda: False)
    after = variables(made)
    changed = {name.split("/")[2] for name in after if name.startswith("/models") and np.any(before[name] != after[name])}
    assert changed == {"generator", "discriminator"}
    assert [int(optimizer.iterations) for optimizer in made.state.task.optimizers.values()] == [8, 8]


def test_a_stopped_gan_resumes_to_the_bit(tmp_path):
    straight = train(tmp_path / "straight", *GAN)
    train(tmp_path / "stopped", *GAN, "train.steps_per_loop=1", stop=lambda made: made.step >= 3)
    assert_same_bits(straight, train(tmp_path / "stopped", *GAN))


def test_a_gan_agrees_on_two_replicas(tmp_path):
    # Without dropout, whose masks belong to a replica.
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=2"]
    one, two = train(tmp_path / "one", *GAN, "+task.dropout=0"), train(tmp_path / "two", *GAN, "+task.dropout=0", *mirrored)
    assert np.abs(weights(one) - weights(two)).max() <= 1e-6


def test_a_task_must_give_the_metrics_that_it_declares(tmp_path):
    made = engine(tmp_path)
    made.state.task.metrics = ("loss", "top5")
    with pytest.raises(
        ValueError, match=r"Classification declares the metrics \['loss', 'top5'\] but its step gave \['accuracy', 'loss'\]"
    ):
        made.train(lambda: False)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_loss_equals_numpy(smoothing):
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 2, 1, 0])
    task = Classification(label_smoothing=smoothing)
    task.models = {"model": lambda x, training: x}
    losses, metrics = task._train_loss({"features": tf.constant(logits), "label": tf.constant(labels)})
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = np.eye(3)[labels] * (1 - smoothing) + smoothing / 3
    np.testing.assert_allclose(losses, -(target * log_p).sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(metrics["accuracy"], (logits.argmax(axis=1) == labels).astype(np.float32))
