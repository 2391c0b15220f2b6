"""The protocols of datasets, tasks, metrics and callbacks: all that the engine uses of them.

They are structural: a user's class needs no base class and imports nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

Batch: TypeAlias = dict[str, Any]
"""Named tensors whose first dimension is the example.

Two names are the engine's own and are in every batch that a task receives: `weight`, [B] float32, 0
for an example that must not count (padding, a skipped image), else 1; and `id`, [B] int64, the
example's index in its split.
"""

Metrics: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Name -> (sum, weight), scalars.

The metric of any set of batches is the sum of the sums divided by the sum of the weights.
"""

PerExample: TypeAlias = "tuple[tf.Tensor, Mapping[str, tf.Tensor]]"
"""What a loss function returns: the loss of each example, [B], and name -> other metrics, [B]."""

LossFn: TypeAlias = Callable[[Batch], PerExample]


class Split(Protocol):
    """One split of a dataset, by random access.

    Attributes:
        num_examples: number of examples.
        in_memory: whether `fetch` only indexes memory. If so it runs inside the compiled training
            loop and there is no iterator at all; if not (files are read, images decoded) it runs
            inside a prefetching tf.data pipeline.
    """

    num_examples: int
    in_memory: bool

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return the examples at `indices`, [B] int64 in [0, num_examples), as a batch.

        Runs in a graph, and must be stateless.
        """


class Dataset(Protocol):
    """What a dataset function returns.

    Attributes:
        train: the training split.
        test: the test split.
        input_shape: shape of one example's `features` as the model receives them, without the batch
            dimension.
        num_classes: number of classes of `label`.
        num_draws: random numbers that `transform` uses for each example.

    It may also have `class_names`, a name for each class; `max_value`, the value of white in the
    images of its splits; and `decode`, a function from the bytes of a file, a scalar string, to one
    example's `features` as `fetch` returns them.
    """

    train: Split
    test: Split
    input_shape: tuple[int, ...]
    num_classes: int
    num_draws: int

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Turn a fetched batch into the model's input, on the replica's device.

        Args:
            batch: what `fetch` returned, at a static batch size.
            draws: random numbers for augmentation, [B, num_draws] float32 in [0, 1), a pure
                function of (seed, epoch, example); None in evaluation, where nothing is random.
        """


@runtime_checkable
class HasFiles(Protocol):
    """A dataset that can also read the user's image files."""

    def files(self, paths: Sequence[Path]) -> Split:
        """Return a split of these files, without labels; unreadable files have weight 0."""


class TaskParts(Protocol):
    """What a task builds its models and optimizers from, inside `strategy.scope()`."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example's features."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    def model(self) -> tf.keras.Model:
        """Build the configured model."""

    def optimizer(self) -> tf.keras.optimizers.legacy.Optimizer:
        """Build the configured optimizer with its learning-rate schedule."""


class StepContext(Protocol):
    """What a task may use in one step, on one replica; implemented by `engine.graph.step.Step`.

    Attributes:
        index: number of the step, scalar int64, from 0.
        num_replicas: replicas that share the step.
    """

    index: tf.Tensor
    num_replicas: int

    def minimize(
        self,
        loss_fn: LossFn,
        batch: Batch,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.legacy.Optimizer,
    ) -> Metrics:
        """Update a model once with the gradient of the global batch's mean loss.

        Args:
            loss_fn: returns the loss and metrics of each example of a (micro-)batch.
            batch: this replica's batch.
            model: the model whose trainable variables are updated.
            optimizer: the optimizer that updates them.

        Returns:
            `loss` and the other metrics as sums and weights over all replicas.
        """

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce a nest of tensors over all replicas; `op`: sum, mean, min or max."""

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Apply `fn` to this replica's value and reduce the result."""

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stack the values of all replicas along a new axis."""

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of replica `source`."""


class Task(Protocol):
    """What is trained and how: owns models and optimizers, and computes a replica's part of a step.

    Steps are traced without AutoGraph: a function that has `if` or `for` on tensors needs
    `tf.function` around it.

    Attributes:
        metrics: names of the metrics that `train_step` and `eval_step` return; `loss` is the first.
        models: the models by name; the first is the one that is exported.
        optimizers: the optimizers by name; each has the name of the model that it updates.
    """

    metrics: tuple[str, ...]
    models: Mapping[str, tf.keras.Model]
    optimizers: Mapping[str, tf.keras.optimizers.legacy.Optimizer]

    def build(self, parts: TaskParts) -> None:
        """Create models and optimizers."""

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Train on one replica's batch through `step.minimize`.

        Returns:
            The metrics, summed over all replicas.
        """

    def eval_step(self, batch: Batch) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Evaluate one replica's batch.

        Returns:
            The loss of each example, [B], and name -> the other metrics of each, [B].
        """

    def predict_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Return the first model's predictions for one replica's batch, name -> [B, ...].

        A classifier returns `probabilities`, [B, num_classes] float32. A task without this method
        has no predictions, and no metrics but its own.
        """


class Metric(Protocol):
    """A metric of a whole split, with the interface of Keras' metrics.

    It lives on the chief, outside the strategy, and receives every example once, in the order of
    the split. If it has an attribute `class_names`, that is set to the names of the classes, or to
    their numbers as text.
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Add examples: labels, [B] int64, and probabilities, [B, num_classes] float32."""

    def result(self) -> Any:
        """Return the value so far: a number, or name -> number."""

    def reset_state(self) -> None:
        """Forget all examples."""


@runtime_checkable
class HasFigures(Protocol):
    """A metric that can also be seen, as an image in TensorBoard, and read, as `<name>.json`."""

    def figure(self) -> np.ndarray:
        """Draw what was counted, [H, W, C] uint8."""

    def table(self) -> Mapping[str, Any]:
        """Return what was counted, as plain containers."""


class Callback(Protocol):
    """Called after each evaluation, in every process.

    Its state belongs in `tf.Variable` attributes: they are saved in every checkpoint.

    It may have a method `adjust_learning_rate(rate)`: it receives the schedule's learning rate of a
    step, float32 scalar, and returns the one that is used. It is traced into the step, in every
    replica, and must depend on nothing but the rate and the callback's variables.
    """

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Return whether training should stop, after an evaluation.

        Args:
            step: number of updates made.
            metrics: the metrics of the test split.
        """
