"""The protocols of what a task may do besides: metrics of metrics, pictures, exports, embeddings.

They are structural, as those of `trainer.protocols`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from trainer.protocols import Batch


@runtime_checkable
class DerivesMetrics(Protocol):
    """A task with metrics that are functions of others, each over the whole split.

    So the mean of ratios is that of the split's ratios, not a mean over batches.

    Attributes:
        derived_metrics: names of these metrics; known after `build`.
    """

    derived_metrics: Sequence[str]

    def derive_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return all metrics that are reported, from those in `metrics`, NaN where none counted."""


@runtime_checkable
class HasPictures(Protocol):
    """A task whose predictions can be seen, as an image in TensorBoard and `<name>.png`.

    Attributes:
        num_pictures: how many examples of the test split are drawn, spread evenly over it.
    """

    num_pictures: int

    def pictures(
        self, examples: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        """Draw examples with what is predicted of them.

        Args:
            examples: name -> [n, ...], as the model receives them.
            predictions: name -> [n, ...], of `predict_step`.

        Returns:
            Name -> [H, W, 3] uint8.
        """


@runtime_checkable
class Serves(Protocol):
    """A task whose export returns more than a table of predictions holds."""

    def serve_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Return what the exported model returns for a batch, name -> [B, ...]."""


@runtime_checkable
class Embeds(Protocol):
    """A task that learns features from comparisons of examples with each other.

    It needs no `eval_step`: an evaluation compares the examples of the whole test split, and finds
    the class of each among its nearest neighbours of the training split.

    Attributes:
        neighbours: number of nearest neighbours; 0: no class is predicted.
    """

    neighbours: int

    def project(self, batch: Batch) -> tf.Tensor:
        """Return what is compared of both `views`, [B, 2, P] float32."""

    def compare(self, projections: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Compare examples with each other; return name -> the metric of each, [N].

        Args:
            projections: [N, 2, P] float32.
        """
