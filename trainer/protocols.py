"""The protocols of datasets, tasks and callbacks: all that the engine uses of them.

They are structural: a user's class needs no base class and imports nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from trainer.acting import EnvSpec
from trainer.labels import KnownLabels
from trainer.nodes import ModelNode, OptimizerNode, ScheduleNode
from trainer.replicas import Replica, Worker

if TYPE_CHECKING:
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

PerExampleMetrics: TypeAlias = "Mapping[str, tf.Tensor | tuple[tf.Tensor, tf.Tensor]]"
"""Name -> the metric of each example, [B]; or its sum and weight in each example, [B] both."""

PerExample: TypeAlias = "tuple[tf.Tensor, PerExampleMetrics]"
"""What a loss function returns: the loss of each example, [B], and other metrics."""

LossFn: TypeAlias = Callable[[Batch], PerExample]


class Split(Protocol):
    """One split of a dataset, by random access.

    Attributes:
        num_examples: number of examples.
        in_memory: whether `fetch` only indexes memory, and so runs inside the compiled training
            loop; if not, it runs in a prefetching tf.data pipeline. With a further attribute
            `augments` that is true, it gets the draws of `Dataset.transform` too, in training. With
            `parts`, each with `name`, `size` and `share`, it is a mixture of sources that lie in it
            one after the other; in training each has its share of the positions. With `hashes`, [N]
            in [0, 1), these choose what goes into the validation split: later examples change none.
    """

    num_examples: int
    in_memory: bool

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return the examples at `indices`, [B] int64 in [0, num_examples), as a batch.

        Runs in a graph, and must be stateless.
        """


@runtime_checkable
class Stream(Protocol):
    """A training split without random access: it has this method instead of `fetch`."""

    def stream(self) -> tf.data.Dataset:
        """Make a dataset of single examples, without an end; the same one whenever it is called."""


class Dataset(Protocol):
    """What a dataset function returns.

    Attributes:
        train: the training split.
        test: the test split.
        input_shape: shape of one example's `features` as the model receives them, without the batch
            dimension.
        num_classes: number of classes of `label`, or of its targets or labels.
        num_draws: random numbers that `transform` uses for each example.

    It may also have `class_names`, a name for each class; `max_value`, the value of white in the
    images of its splits; and `decode`, a function from the bytes of a file, a scalar string, to one
    example's `features` as `fetch` returns them. One whose `transform` joins neighbours in training
    has `group_size`: a replica's part of the batch, or a shard, is a multiple of it. One that is
    fitted to its training split has the methods of `trainer.worker.building.fitted_dataset.Fitted`. Labels
    may be other than classes: `trainer.labels`.
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


class TaskParts(KnownLabels, Worker, Protocol):
    """What a task builds its models and optimizers from, inside `strategy.scope()`."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example's features."""

    @property
    def num_classes(self) -> int:
        """Number of classes, targets or labels."""

    @property
    def num_outputs(self) -> int:
        """Outputs of the group `model`: what its option `outputs` says, or `num_classes`."""

    @property
    def env(self) -> EnvSpec | None:
        """The environment; None: the data is a dataset."""

    def model(
        self,
        node: ModelNode | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        outputs: int | tuple[int, ...] | None = None,
    ) -> tf.keras.Model:
        """Build a model.

        Args:
            node: which one; None: that of the group `model`.
            input_shape: shape of one example of its input, the first argument of its function;
                None: that of the dataset's features.
            outputs: number of its outputs, or their shape, the second argument; None: the number of
                classes.
        """

    def optimizer(
        self,
        node: OptimizerNode | None = None,
        *,
        schedule: ScheduleNode | None = None,
        updates_per_step: int = 1,
    ) -> tf.keras.optimizers.legacy.Optimizer:
        """Build an optimizer whose learning rate follows a schedule.

        Callbacks that adjust the learning rate adjust each optimizer's.

        Args:
            node: which one; None: that of the group `optimizer`.
            schedule: how its learning rate changes over time; None: as the group `schedule` says.
            updates_per_step: updates that it makes in a step; its learning rate follows the steps.
        """


class StepContext(Replica, Protocol):
    """What a task may use in one step, on one replica; implemented by `engine.graph.step.Step`.

    Attributes:
        index: number of the step, scalar int64, from 0.
    """

    index: tf.Tensor

    def minimize(
        self,
        loss_fn: LossFn,
        batch: Batch,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.legacy.Optimizer,
    ) -> Metrics:
        """Update a model once with the gradient of the mean loss over all replicas.

        The mean is over all examples in the replicas' batches, those of weight 0 included.

        Args:
            loss_fn: returns the loss and metrics of each example of a (micro-)batch.
            batch: this replica's batch, or a part of it from `split`.
            model: the model whose trainable variables are updated.
            optimizer: the optimizer that updates them.

        Returns:
            `loss` and the other metrics as sums and weights over all replicas.
        """

    def soft_update(
        self, target: tf.keras.Model, source: tf.keras.Model, tau: float | tf.Tensor
    ) -> None:
        """Move the variables of a model without optimizer towards another's, by the share `tau`."""

    def split(self, batch: Batch, count: int) -> list[Batch]:
        """Cut this replica's batch into equal parts, for an update with each.

        Part k has every `count`-th example from the k-th on: the same examples of the global batch
        on any number of replicas.
        """

    def random_normal(self, shape: Sequence[int], dtype: Any = ...) -> tf.Tensor:
        """Draw from the standard normal distribution, float32 by default.

        A replica, and within `loss_fn` a shard or micro-batch, gets its slice of what the global
        batch draws: the same numbers on any number of replicas. Each call in a step draws anew.

        Args:
            shape: static; the first dimension is the example. [] is a number that all share.
            dtype: a floating-point type.
        """

    def random_uniform(
        self, shape: Sequence[int], minval: Any = 0, maxval: Any = None, dtype: Any = ...
    ) -> tf.Tensor:
        """Draw uniformly from [minval, maxval), by default float32 from [0, 1); as above."""


class Task(Protocol):
    """What is trained and how: owns models and optimizers, and computes a replica's part of a step.

    Steps are traced without AutoGraph: a function that has `if` or `for` on tensors needs
    `tf.function` around it. It may also be `DerivesMetrics`, `HasPictures` or `WritesText`.

    Attributes:
        metrics: names of the metrics that `train_step` and `eval_step` return; `loss` is the first.
            What selects by one asks the attribute `direction`, name -> `max` or `min`, a literal of
            the class; that of `loss` is `min` without it. `primary_metric` is the one by which runs
            are compared, `loss` without it.
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

    def eval_step(self, batch: Batch) -> PerExample:
        """Return the loss and the other metrics of each example of one replica's batch.

        Those of an example must not depend on which others are in the batch. What compares examples
        takes an argument `step` too, and gathers those of all replicas with its collectives.
        """

    def predict_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Return the first model's predictions for one replica's batch, name -> [B, ...].

        Their names are in `trainer.labels`. Without this method a task has no metrics but its own.
        """


@runtime_checkable
class Generates(Protocol):
    """A task whose first model makes examples out of random vectors.

    Attributes:
        latent_size: numbers in a random vector; known after `build`.
    """

    latent_size: int

    def generate(self, latents: tf.Tensor) -> tf.Tensor:
        """Return the examples of some vectors as the trained model makes them.

        Args:
            latents: [B, latent_size] float32, from the standard normal distribution.

        Returns:
            [B, *input_shape] float32, in the units of the dataset's features.
        """


class Callback(Protocol):
    """Called after each evaluation, in every process.

    Its state belongs in `tf.Variable` attributes: they are saved in every checkpoint.

    It may have a method `adjust_learning_rate(rate)`: it receives the schedule's learning rate of a
    step, float32 scalar, and returns the one that is used. It is traced into the step, in every
    replica, and must depend on nothing but the rate and the callback's variables. An attribute
    `directions` is set to which direction of each metric is better (`trainer.config.directions`).
    """

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Return whether training should stop, after an evaluation.

        Args:
            step: number of updates made.
            metrics: the metrics of the validation split; without one of the test split.
        """
