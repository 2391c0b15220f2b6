"""The seams: what the engine asks of a dataset, a task and a callback, and nothing more.

They are structural: a user's class needs no base class and imports nothing from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.step import Step

Batch: TypeAlias = dict[str, Any]
"""Named tensors whose first dimension is the example. Two names are the engine's own and are in every batch a task sees:
`weight`, [B] float32, 0 for an example that must not count (padding, a skipped image), else 1; and `id`, [B] int64, the
example's index in its split."""

Metrics: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Name -> (sum, weight), scalars: the metric of any set of batches is the sum of the sums over the sum of the weights."""


class Split(Protocol):
    """One split of a dataset, by random access.

    Attributes:
        num_examples: how many there are.
        resident: whether `fetch` only indexes memory. If so it runs inside the compiled training loop and there is no
            iterator at all; if not (files are read, images decoded) it runs inside a prefetching tf.data pipeline.
    """

    num_examples: int
    resident: bool

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Gives the examples at `indices`, [B] int64 in [0, num_examples), as a batch. Graph-callable and stateless."""


class Dataset(Protocol):
    """What a dataset function returns.

    Attributes:
        train: the split that is trained on.
        test: the split that is evaluated.
        input_shape: shape of one example's `features` as the model sees them, without the batch dimension.
        num_classes: how many classes `label` counts.
        num_draws: how many random numbers `transform` takes for each example.

    It may also have `class_names`, a name for each class; `max_value`, what stands for white in the images of its splits; and
    `decode`, a function from the bytes of a file, a scalar string, to one example's `features` as `fetch` gives them.
    """

    train: Split
    test: Split
    input_shape: tuple[int, ...]
    num_classes: int
    num_draws: int

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Turns a fetched batch into what the model sees, on the replica's device.

        Args:
            batch: what `fetch` gave, at a static batch size.
            draws: [B, num_draws] float32 in [0, 1), a pure function of (seed, epoch, example), for augmentation; None in
                evaluation, where nothing may be random.
        """


@runtime_checkable
class HasFiles(Protocol):
    """A dataset whose examples can come from any image files."""

    def files(self, paths: Sequence[Path]) -> Split:
        """Gives a split without labels of these files; what cannot be read has weight 0."""


class Parts(Protocol):
    """What a task is given to build itself from. Called inside `strategy.scope()`."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example's features."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    def model(self) -> tf.keras.Model:
        """Builds the configured model."""

    def optimizer(self) -> tf.keras.optimizers.legacy.Optimizer:
        """Builds the configured optimizer with its learning-rate schedule."""


class Task(Protocol):
    """What is trained and how: owns models and optimizers, and computes one replica's part of a step.

    Steps are traced without AutoGraph: a function of yours that has `if` or `for` on tensors needs `tf.function` around it.

    Attributes:
        metrics: names of the metrics that `train_step` and `eval_step` give; `loss` is the first.
        models: the models by name; the first is the one that is exported.
        optimizers: the optimizers by name; each has the name of the model that it updates.
    """

    metrics: tuple[str, ...]
    models: Mapping[str, tf.keras.Model]
    optimizers: Mapping[str, tf.keras.optimizers.legacy.Optimizer]

    def build(self, parts: Parts) -> None:
        """Creates models and optimizers."""

    def train_step(self, batch: Batch, step: Step) -> Metrics:
        """Trains on one replica's batch through `step.minimize`; returns metrics summed over all replicas."""

    def eval_step(self, batch: Batch) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Evaluates one replica's batch; returns the loss of each example, [B], and the other metrics of each, name -> [B]."""

    def predict_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Gives what the first model says of each example of one replica's batch, name -> [B, ...].

        `probabilities`, [B, num_classes] float32, for a classifier. A task without this method has no predictions and no further
        metrics.
        """


class Metric(Protocol):
    """A metric of a whole split. That of Keras' metrics: each of them is one.

    It lives on the chief, outside the strategy, and is given every example once, in the order of the split. If it has an attribute
    `class_names`, that is set to the names of the classes, or to their numbers as text.
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Takes more examples: labels, [B] int64, and probabilities, [B, num_classes] float32."""

    def result(self) -> Any:
        """Gives the value so far: a number, or name -> number."""

    def reset_state(self) -> None:
        """Forgets what it was given."""


class Callback(Protocol):
    """Something told of a run's events. May keep state in `tf.Variable` attributes: they are in every checkpoint.

    It may have `adjust_learning_rate(rate)`: given the learning rate of a step by the schedule, float32 scalar, it gives what is used.
    That is traced into the step, in every replica, and must depend on nothing but the rate and the callback's variables.
    """

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Called after each evaluation. Returns whether training should stop."""
