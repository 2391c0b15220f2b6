"""The task contract: two models and two optimizers in a step; classification's numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import (
    ROUNDING,
    distance,
    engine,
    train,
    variables,
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


def test_both_models_of_a_task_are_trained(tmp_path):
    run = engine(tmp_path, *GAN)
    before = variables(run)
    run.train(lambda: False)
    after = variables(run)
    changed = {
        name.split("/")[2]
        for name in after
        if name.startswith("/models") and np.any(before[name] != after[name])
    }
    assert changed == {"generator", "discriminator"}
    optimizers = run.state.task.optimizers.values()
    assert [int(optimizer.iterations) for optimizer in optimizers] == [8, 8]


def test_gan_agrees_on_two_replicas(tmp_path):
    # Without dropout, whose masks belong to a replica.
    gan = [*GAN, "+task.dropout=0"]
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=2"]
    initial = variables(engine(tmp_path / "initial", *gan))
    one = train(tmp_path / "one", *gan)
    two = train(tmp_path / "two", *gan, *mirrored)
    assert distance(one, two, initial) <= ROUNDING


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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_loss_equals_numpy(smoothing):
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 2, 1, 0])
    task = Classification(label_smoothing=smoothing)
    task.models = {"model": lambda x, training: x}
    losses, metrics = task._train_loss(
        {"features": tf.constant(logits), "label": tf.constant(labels)}
    )
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = np.eye(3)[labels] * (1 - smoothing) + smoothing / 3
    # float32 rounds to 6e-8, and a loss is made of some ten operations on numbers up to 3.
    np.testing.assert_allclose(losses, -(target * log_p).sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(
        metrics["accuracy"], (logits.argmax(axis=1) == labels).astype(np.float32)
    )


def test_predictions_leave_out_outputs_that_are_no_class():
    task = Classification()
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(7)])
    task.build(
        SimpleNamespace(num_classes=3, num_outputs=7, model=lambda: model, optimizer=lambda: None)
    )
    features = np.random.default_rng(0).normal(size=[2, 4]).astype(np.float32)
    probabilities = task.predict_step({"features": features})["probabilities"]
    np.testing.assert_allclose(probabilities, tf.nn.softmax(model(features))[:, :3], rtol=1e-6)
