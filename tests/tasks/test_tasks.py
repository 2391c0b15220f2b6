"""The task contract: two models and two optimizers in a step."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import (
    engine,
)
from trainer.errors import ConfigError
from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts
from trainer.tasks.classification import Classification


class Gan:
    """A generator of 8 x 8 images against a discriminator (Goodfellow et al. 2014)."""

    metrics = ("loss", "discriminator_loss")

    def __init__(self, *, latent: int = 4, dropout: float = 0.2) -> None:
        self.latent, self.dropout = latent, dropout

    def build(self, parts: TaskParts) -> None:
        layers, shape = tf.keras.layers, parts.input_shape
        generator = [
            layers.Dense(16, "relu", input_shape=(self.latent,)),
            layers.Dense(int(np.prod(shape)), "sigmoid"),
            layers.Reshape(shape),
        ]
        discriminator = [
            layers.Flatten(input_shape=shape),
            layers.Dense(16, "relu"),
            layers.Dropout(self.dropout),
            layers.Dense(1),
        ]
        self.models = {
            "generator": tf.keras.Sequential(generator),
            "discriminator": tf.keras.Sequential(discriminator),
        }
        self.optimizers = {name: parts.optimizer() for name in self.models}

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        # Noise that belongs to the example, not to the replica: the same on any number of replicas.
        noise = tf.cos(
            tf.cast(batch["id"], tf.float32)[:, None] * tf.range(1.0, self.latent + 1)
            + tf.cast(step.index, tf.float32)
        )
        batch = {**batch, "noise": noise}
        discriminated = step.minimize(
            self._discriminator_loss,
            batch,
            self.models["discriminator"],
            self.optimizers["discriminator"],
        )
        generated = step.minimize(
            self._generator_loss, batch, self.models["generator"], self.optimizers["generator"]
        )
        return {"loss": generated["loss"], "discriminator_loss": discriminated["loss"]}

    def eval_step(self, batch: Batch) -> PerExample:
        batch = {**batch, "noise": tf.zeros([tf.shape(batch["features"])[0], self.latent])}
        return self._generator_loss(batch, training=False)[0], {
            "discriminator_loss": self._discriminator_loss(batch, training=False)[0]
        }

    def _judge(self, images: tf.Tensor, real: float, training: bool) -> tf.Tensor:
        logits = self.models["discriminator"](images, training=training)[:, 0]
        return tf.nn.sigmoid_cross_entropy_with_logits(tf.fill(tf.shape(logits), real), logits)

    def _discriminator_loss(self, batch: Batch, training: bool = True) -> PerExample:
        fakes = self.models["generator"](batch["noise"], training=training)
        return self._judge(batch["features"], 1.0, training) + self._judge(fakes, 0.0, training), {}

    def _generator_loss(self, batch: Batch, training: bool = True) -> PerExample:
        return self._judge(
            self.models["generator"](batch["noise"], training=training), 1.0, training
        ), {}


GAN = [
    "task._target_=tests.tasks.test_tasks.Gan",
    "~task.label_smoothing",
    "~task.class_weights",
    "~task.focal_gamma",
    "optimizer=sgd",
    "train.clip_norm=1",
]


def test_task_must_return_the_metrics_that_it_declares(tmp_path):
    run = engine(tmp_path)
    run.state.task.metrics = ("loss", "top5")
    with pytest.raises(
        ValueError,
        match=r"Classification declares the metrics \['loss', 'top5'\] "
        r"but its step gave \['accuracy', 'loss'\]",
    ):
        run.train(lambda: False)


class Misnamed(Classification):
    """Its optimizer has another name than its model."""

    def build(self, parts: TaskParts) -> None:
        self.models = {"model": parts.model(), "teacher": parts.model()}
        self.optimizers = {"modle": parts.optimizer()}


class SharedOptimizer(Classification):
    """Two models with one optimizer."""

    def build(self, parts: TaskParts) -> None:
        self.models = {"model": parts.model(), "teacher": parts.model()}
        self.optimizers = dict.fromkeys(self.models, parts.optimizer())


class SharedModel(Classification):
    """Two optimizers of one model."""

    def build(self, parts: TaskParts) -> None:
        self.models = dict.fromkeys(["model", "teacher"], parts.model())
        self.optimizers = {name: parts.optimizer() for name in self.models}


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (
            Misnamed,
            "task: optimizers has modle, which is the name of no model; an optimizer has the name "
            "of the model that it updates: model, teacher; did you mean 'model'?",
        ),
        (
            SharedOptimizer,
            "task: optimizers has the same object as model and as teacher; "
            "call parts.optimizer() for each model",
        ),
        (
            SharedModel,
            "task: models has the same object as model and as teacher; give each model one name",
        ),
    ],
)
def test_optimizer_that_would_not_be_saved_is_refused(tmp_path, task, problem):
    with pytest.raises(ConfigError) as raised:
        engine(tmp_path, f"task._target_={__name__}.{task.__name__}")
    assert raised.value.problems == (problem,)
