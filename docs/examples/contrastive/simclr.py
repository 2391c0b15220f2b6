"""Contrastive learning without labels: SimCLR (Chen et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import tensorflow as tf
from neighbors import embedding_evaluator

from trainer.annotations import Ge, Gt
from trainer.engine.evaluation.evaluator import Evaluator, Predictor
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.input.feed import Source
from trainer.errors import ConfigError
from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts

_NEVER = -1e9
"""A logit whose exponential is 0."""


class SimCLR:
    """Trains an encoder so that two views of an image are similar, and unlike all other images.

    The encoder is the configured model without its last layer. A projection head of two layers
    follows, which only the loss sees. The loss is NT-Xent over the global batch: each view of an
    example is distinguished from the views of all other examples on all replicas.

    Attributes:
        neighbors: number of nearest neighbors that predict a class in an evaluation.

    Args:
        temperature: what similarities are divided by.
        hidden: width of the head's hidden layer.
        projection: width of its output, which is compared.
        neighbors: an evaluation predicts the class of a test example from so many of its nearest
            neighbors in the training split; 0: it does not.
    """

    metrics = ("loss", "accuracy")
    direction: ClassVar = {"loss": "min", "accuracy": "max", "knn_accuracy": "max"}
    single_input = True
    primary_metric = "accuracy"

    def __init__(
        self,
        *,
        temperature: Annotated[float, Gt(0)] = 0.2,
        hidden: Annotated[int, Ge(1)] = 128,
        projection: Annotated[int, Ge(1)] = 64,
        neighbors: Annotated[int, Ge(0)] = 10,
    ) -> None:
        self.neighbors = neighbors
        self._temperature = temperature
        self._hidden = hidden
        self._projection = projection
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        """Create encoder and head as one model, and its optimizer.

        Raises:
            ConfigError: the configured model has no such last layer.
        """
        encoder = parts.model()
        features = _last_input(encoder)
        layers = getattr(encoder, "library", tf.keras).layers
        x = layers.Dense(self._hidden, activation="relu", name="head_hidden")(features)
        x = layers.Dense(self._projection, dtype="float32", name="head_projection")(x)
        model = (
            encoder.extended([features, x])
            if hasattr(encoder, "extended")
            else tf.keras.Model(encoder.input, [features, x], name=encoder.name)
        )
        self.models = {"model": model}
        self.optimizers = {"model": parts.optimizer()}

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch.

        Raises:
            ConfigError: the batch has no views.
        """
        if "views" not in batch:
            raise ConfigError(
                "task=simclr needs two random versions of each image, as dataset=colored_digits "
                "with augment=simclr makes them"
            )
        return step.minimize(
            lambda part: self._loss(part, step),
            batch,
            self.models["model"],
            self.optimizers["model"],
        )

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return what the encoder makes of each example, `features` [B, D] float32."""
        features, _ = self.models["model"](batch["features"], training=False)
        return {"features": tf.cast(features, tf.float32)}

    def project(self, batch: Batch) -> tf.Tensor:
        """Return the projections of both views, [B, 2, P] float32 of length 1."""
        return tf.stack(self._project(batch, training=False), axis=1)

    def compare(self, projections: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return loss and accuracy of each example among these, [N].

        Args:
            projections: of both views, [N, 2, P] float32.
        """
        views = tf.unstack(projections, axis=1)
        losses, accuracy = nt_xent(views, views, tf.ones([views[0].shape[0]]), 0, self._temperature)
        return {"loss": losses, "accuracy": accuracy}

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        """Return what compares the examples of a split, and finds their neighbors."""
        return embedding_evaluator(self, inference, source)

    def _loss(self, batch: Batch, step: StepContext) -> PerExample:
        weight = batch["weight"]
        own = self._project(batch, training=True)
        gathered = step.all_gather({"views": own, "weight": weight})
        everyone = [tf.reshape(view, [-1, view.shape[-1]]) for view in gathered["views"]]
        losses, accuracy = nt_xent(
            own,
            everyone,
            tf.reshape(gathered["weight"], [-1]),
            tf.cast(step.replica, tf.int32) * int(weight.shape[0]),
            self._temperature,
        )
        return losses, {"accuracy": accuracy}

    def _project(self, batch: Batch, *, training: bool) -> list[tf.Tensor]:
        """Return the projections of each view, [B, P] float32 of length 1."""
        # One after the other: a random layer draws for as many rows as there are examples.
        return [
            tf.math.l2_normalize(self.models["model"](view, training=training)[1], axis=-1)
            for view in tf.unstack(batch["views"], axis=1)
        ]


def nt_xent(
    own: list[tf.Tensor],
    everyone: list[tf.Tensor],
    weight: tf.Tensor,
    first: int | tf.Tensor,
    temperature: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the loss NT-Xent (Chen et al. 2020) of some examples among all of them.

    For a view i whose other view is j, with similarities s, the products of projections, it is
    -log(exp(s(i, j) / t) / the sum of exp(s(i, k) / t) over all views k but i). An example's loss
    is the mean of its two views'.

    Args:
        own: the projections of both views of these examples, [B, P] float32 each, of length 1.
        everyone: those of all examples, [N, P].
        weight: 0 for those of all examples that count for nothing, [N] float32.
        first: the number of the first of these among all, int32.
        temperature: t.

    Returns:
        The loss of each example, [B], and the fraction of its two views that are more like each
        other than like any other view, [B].
    """
    count = int(everyone[0].shape[0])
    logits = tf.matmul(tf.concat(own, 0), tf.concat(everyone, 0), transpose_b=True) / temperature
    position = first + tf.range(int(own[0].shape[0]))
    itself = tf.concat([position, position + count], 0)
    other = tf.concat([position + count, position], 0)
    is_left_out = tf.equal(tf.range(2 * count)[None], itself[:, None])
    is_left_out |= tf.equal(tf.tile(weight, [2]), 0.0)[None]
    logits = tf.where(is_left_out, _NEVER, logits)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(other, logits)
    is_first = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), other)
    is_first &= tf.math.is_finite(losses)
    pairs = [tf.split(x, 2) for x in (losses, tf.cast(is_first, tf.float32))]
    return (pairs[0][0] + pairs[0][1]) / 2.0, (pairs[1][0] + pairs[1][1]) / 2.0


def _last_input(model: tf.keras.Model) -> tf.Tensor:
    """Return the input of a model's last layer, symbolic [B, D]."""
    layers = getattr(model, "layers", ())
    features = getattr(layers[-1], "input", None) if layers else None
    if not getattr(model, "inputs", None) or len(getattr(features, "shape", ())) != 2:
        raise ConfigError(
            "model: task=simclr needs a functional model whose last layer takes a vector, "
            "such as model=cnn or model=resnet"
        )
    return features
