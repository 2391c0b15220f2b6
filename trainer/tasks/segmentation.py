"""Semantic segmentation: the class of each pixel, with the mean intersection over union."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import (
    Evaluation,
    Evaluator,
    OfRows,
    Predictor,
    Rows,
    columns,
)
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.input.feed import Source, SpreadExamples
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.protocols import Batch, PerExample, PerExampleMetrics, TaskParts
from trainer.summaries import figures
from trainer.tasks.supervised import OneModel

IGNORED = 255
"""Value of a mask's pixels that count neither in the loss nor in a metric."""
_MOST_NAMED_CLASSES = 20
_NUM_PICTURES = 8  # examples in the picture of an evaluation, spread evenly over the split


class Segmentation(OneModel):
    """Trains `model(features)`, logits [B, H, W, classes], on masks, [B, H, W] integers.

    The loss of an example is the mean cross-entropy of its pixels; those of value 255 do not count.
    The metrics are exact over a whole split, for they are computed from sums over all its pixels:
    `accuracy` of the pixels, and `mean_iou`, the mean over the classes of the intersection of label
    and prediction over their union (Everingham et al. 2010). A class that occurs in neither does
    not count in the mean. With up to 20 classes that of each is a metric too, `iou/<number>`.
    """

    direction: ClassVar = {"loss": "min", "accuracy": "max", "mean_iou": "max", "iou": "max"}
    single_input = True
    primary_metric = "accuracy"

    def __init__(self) -> None:
        super().__init__()
        self._num_classes = 0
        self._shape: list[int] | None = None
        self.metrics: tuple[str, ...] = ("loss", "accuracy")
        self.derived_metrics: Sequence[str] = ("mean_iou",)

    def build(self, parts: TaskParts) -> None:
        self._num_classes = parts.num_classes
        if self._num_classes > IGNORED:
            raise ConfigError(
                f"task: a mask has at most {IGNORED} classes, 0 to {IGNORED - 1}, and the dataset "
                f"has {self._num_classes}; join some of them"
            )
        self.metrics = ("loss", "accuracy", *self._iou_names())
        self._shape = [*parts.input_shape[:2], self._num_classes]
        super().build(parts)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the most probable class of each pixel, `mask` [B, H, W] uint8."""
        logits = self._logits(batch, training=False)
        return {"mask": tf.cast(tf.argmax(logits, axis=-1), tf.uint8)}

    def serve_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `mask` and the probability of each class, [B, H, W, classes] float32."""
        probabilities = tf.nn.softmax(self._logits(batch, training=False))
        return {**self.predict_step(batch), "probabilities": probabilities}

    def derive_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        each = {name: metrics[name] for name in self._iou_names()}
        present = [value for value in each.values() if not np.isnan(value)]
        others = {name: value for name, value in metrics.items() if name not in each}
        mean = float(np.mean(present)) if present else float("nan")
        return {**others, "mean_iou": mean, **(each if len(each) <= _MOST_NAMED_CLASSES else {})}

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        """Return what evaluates a split, and draws some of its examples."""
        of_rows = inference.configured_metrics(predictor) or self._pictures(inference, source)
        return inference.split_evaluator(source, of_rows)

    def _pictures(self, inference: Inference, source: Source) -> tuple[Predictor, OfRows]:
        """Return what draws some examples of a split, spread evenly, with their predictions."""
        split = SpreadExamples(source.split, _NUM_PICTURES)

        def of_rows(step: int, rows: Iterator[Rows]) -> Evaluation:
            predictions = columns(rows)
            if not predictions:
                return Evaluation({})
            with tf.device("CPU:0"):
                batch = split.fetch(tf.constant(predictions["id"], tf.int64))
                examples = inference.dataset.transform(batch, None)
            arrays = {name: np.asarray(value) for name, value in examples.items()}
            picture = self.picture(arrays, predictions["mask"])
            write_atomically(inference.run_dir / "masks.png", figures.png(picture))
            return Evaluation({}, {"masks": picture[None]})

        return inference.predict(replace(source, split=split)), of_rows

    def picture(self, examples: Rows, predicted: np.ndarray) -> np.ndarray:
        """Draw images, masks and predicted masks side by side, an example a row."""
        features = examples["features"].astype(np.float64)
        low = features.min(axis=(1, 2, 3), keepdims=True)
        width = np.maximum(features.max(axis=(1, 2, 3), keepdims=True) - low, 1e-6)
        # Normalized images are stretched to what can be shown.
        is_plain = (low >= 0.0) & (low + width <= 1.0)
        shown = np.where(is_plain, features, (features - low) / width)
        if shown.shape[-1] not in (1, 3):
            shown = shown[..., :1]
        images = np.rint(255 * shown).astype(np.uint8)
        columns = [
            np.broadcast_to(images, (*images.shape[:3], 3)),
            figures.class_colors(examples["mask"]),
            figures.class_colors(predicted),
        ]
        tiles = np.stack(columns, axis=1).reshape(-1, *images.shape[1:3], 3)
        return figures.image_grid(tiles, 3)

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        if "mask" not in batch:
            raise ConfigError(
                "task=segmentation needs examples with a mask, the dataset's have "
                f"{', '.join(sorted(batch))}; choose dataset=image_masks or dataset=shapes"
            )
        logits = self._logits(batch, training=training)
        mask = tf.cast(batch["mask"], tf.int32)
        is_valid = tf.not_equal(mask, IGNORED)
        labels = tf.where(is_valid, mask, 0)
        valid = tf.cast(is_valid, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        predictions = tf.where(tf.math.is_finite(losses), tf.argmax(logits, -1, tf.int32), -1)
        losses *= valid
        count = tf.reduce_sum(valid, axis=[1, 2])
        loss = tf.reduce_sum(losses, axis=[1, 2]) / tf.maximum(count, 1.0)
        return loss, self._counts(labels, predictions, valid)

    def _counts(
        self, labels: tf.Tensor, predictions: tf.Tensor, valid: tf.Tensor
    ) -> PerExampleMetrics:
        """Return the numbers of pixels that metrics are made of, [B] each; prediction -1: none."""
        is_right = tf.cast(tf.equal(labels, predictions), tf.float32) * valid
        labeled = tf.one_hot(labels, self._num_classes) * valid[..., None]
        predicted = tf.one_hot(predictions, self._num_classes) * valid[..., None]
        pixels = [1, 2]
        intersection = tf.reduce_sum(labeled * predicted, pixels)
        union = tf.reduce_sum(labeled, pixels) + tf.reduce_sum(predicted, pixels) - intersection
        return {
            "accuracy": (tf.reduce_sum(is_right, pixels), tf.reduce_sum(valid, pixels)),
            **{
                name: (intersection[:, number], union[:, number])
                for number, name in enumerate(self._iou_names())
            },
        }

    def _iou_names(self) -> list[str]:
        return [f"iou/{number}" for number in range(self._num_classes)]

    def _logits(self, batch: Batch, *, training: bool) -> tf.Tensor:
        return self._call(
            batch["features"],
            training=training,
            shape=self._shape,
            fix="task=segmentation needs a logit of each class for each pixel; choose model=unet",
        )
