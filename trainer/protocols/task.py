"""The protocols of tasks: all that the engine uses of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from trainer.protocols.acting import EnvSpec
from trainer.protocols.data import Batch, Dataset, KnownLabels, LabelKind

if TYPE_CHECKING:
    import tensorflow as tf

Metrics: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Name -> (sum, weight), scalars.

The metric of any set of batches is the sum of the sums divided by the sum of the weights.
"""


PerExampleMetrics: TypeAlias = "Mapping[str, tf.Tensor | tuple[tf.Tensor, tf.Tensor]]"
"""Name -> the metric of each example, [B]; or its sum and weight in each example, [B] both."""


PerExample: TypeAlias = "tuple[tf.Tensor, PerExampleMetrics]"
"""What a loss function returns: the loss of each example, [B], and other metrics."""


STATES = "states"
"""Name of the sums that a task adds to itself: a vector in place of (sum, weight)."""


@dataclass(frozen=True)
class PartLoss:
    """What a loss function may return instead: the loss of a whole part of the global batch.

    Attributes:
        loss: what the part adds to the loss of the global batch, regularization included, a scalar.
        sums: what it adds to the metrics, as a step returns them.
    """

    loss: tf.Tensor
    sums: Metrics


LossFn: TypeAlias = Callable[[Batch], "PerExample | PartLoss"]


class Worker(Protocol):
    """One process of those that train together."""

    @property
    def worker(self) -> int:
        """The number of this process, from 0; a chief that schedules steps is 0."""

    @property
    def num_workers(self) -> int:
        """The number of processes that run every step together."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""


class Replica(Protocol):
    """One replica in a step, and its exchange with the others.

    Attributes:
        num_replicas: replicas that share the step.
        replica: number of this one, from 0; a scalar tensor where one trace is for all.
        worker: number of the process that it belongs to, from 0.
    """

    num_replicas: int
    replica: int | tf.Tensor
    worker: int | tf.Tensor

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce a nest of numbers or dense tensors over all replicas, element by element.

        Args:
            op: sum, mean, min or max. There is no mean of integers.
        """

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Apply `fn` to this replica's value and reduce the result."""

    def reduce_scatter(self, value: Any, op: str = "sum", axis: int = 0) -> Any:
        """Reduce a nest of tensors over all replicas, and return this replica's part along `axis`.

        The length of the axis must be a multiple of `num_replicas`.
        """

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stack the values of all replicas along a new axis, of length `num_replicas`."""

    def map_gather(self, fn: Callable[[Any], Any], value: Any, axis: int = 0) -> Any:
        """Apply `fn` to this replica's value and stack the results of all replicas."""

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of replica `source`; all values have the same nest, shapes and types."""


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
        """Outputs of the group `model`: its option `outputs`, or `num_classes`."""

    @property
    def feature_specs(self) -> Any:
        """What a model is called with: a nest of `tf.TensorSpec`, [None, ...] each."""

    @property
    def batch_specs(self) -> Mapping[str, Any]:
        """What a global batch of the training holds, name -> nest of `tf.TensorSpec`."""

    @property
    def test_specs(self) -> Mapping[str, Any] | None:
        """What a global batch of the evaluated split holds, in that form, or None."""

    @property
    def num_parts(self) -> int:
        """How many equal parts a global batch is computed in: replicas, shards, micro-batches."""

    @property
    def has_weights(self) -> bool:
        """Whether training examples have a `weight`: 0 for one that is unusable."""

    def examples(self, count: int, *, of_test: bool = False) -> Batch:
        """Return examples, spread evenly, as a model is given them without augmentation.

        Args:
            count: how many at most.
            of_test: whether they are of the evaluated split, and not of the training.
        """

    @property
    def has_optimizer(self) -> bool:
        """Whether the group `optimizer` has a choice."""

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
        schedule: ScheduleNode | Callable[[Any], Any] | None = None,
        updates_per_step: int = 1,
        make: Callable[[Callable[[Any], Any]], Any] | None = None,
    ) -> tf.keras.optimizers.legacy.Optimizer:
        """Build an optimizer whose learning rate follows a schedule.

        Callbacks that adjust the learning rate adjust each optimizer's.

        Args:
            node: which one; None: that of the group `optimizer`.
            schedule: how its learning rate changes over time; a function returns the rate of an
                update; None: the group `schedule`.
            updates_per_step: updates that it makes in a step; a configured schedule follows the
                steps.
            make: returns the optimizer that follows a learning rate, a function of the update;
                None: the target of the node does.
        """


class StepContext(Replica, Protocol):
    """What a task may use in one step, on one replica; implemented by `engine.graph.step.Step`.

    Attributes:
        index: number of the step, scalar int64, from 0.
    """

    index: tf.Tensor

    @property
    def num_parts(self) -> int:
        """How many equal parts the global batch is computed in, on all replicas."""

    def gather_rows(self, value: Any) -> Any:
        """Join the examples, [B, ...], of all replicas; lengths may differ between batches."""

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

    def forward(self, fn: Callable[[Batch], Any], batch: Batch, model: tf.keras.Model) -> Any:
        """Return what `fn` returns for the parts that `minimize` will compute, concatenated.

        Nothing changes, and `minimize` draws the same random numbers afterwards.
        """

    def soft_update(
        self, target: tf.keras.Model, source: tf.keras.Model, tau: float | tf.Tensor
    ) -> None:
        """Move the variables of a model without optimizer: target += tau * (source - target).

        Nothing moves after an update that was dropped. `tau` is in [0, 1].
        """

    def split(self, batch: Batch, count: int) -> list[Batch]:
        """Cut this replica's batch into equal parts, for an update with each.

        Part k has every `count`-th example from the k-th on: the same examples of the global batch
        on any number of replicas.
        """

    def random_normal(self, shape: Sequence[int], dtype: Any = ...) -> tf.Tensor:
        """Draw from the standard normal distribution, float32 by default.

        A replica, and within `loss_fn` a shard or micro-batch, gets its slice of what the global
        batch draws: the same numbers on any number of replicas. Each call in a step draws again.

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
    `tf.function` around it. What else it may have is in `TaskDefaults`. One with a `make_evaluator`
    needs no `eval_step`.

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

    def eval_step(self, batch: Batch) -> PerExample:
        """Return the loss and the other metrics of each example of one replica's batch.

        Those of an example must not depend on which others are in the batch. What compares examples
        takes an argument `step` too, and gathers those of all replicas with its collectives.
        """


@dataclass(frozen=True)
class Served:
    """What an export of a task serves.

    Attributes:
        functions: concrete functions by name; `serving_default` is one of them. They return
            name -> [N, ...]. Trace them without AutoGraph, as the steps are.
        text: the model card's text on inputs and outputs, Markdown; empty: their shapes.
        usage: lines of Python that set `predictions`, after `model` was loaded; empty: a call of
            `serving_default`.
    """

    functions: Mapping[str, Any]
    text: str = ""
    usage: Sequence[str] = ()


class TaskDefaults:
    """Optional members of a task, with their defaults.

    Attributes:
        direction: name of a metric -> `max` or `min`, a literal of the class; that of `loss` is
            `min` anyway.
        primary_metric: the metric by which runs are compared; None: `loss`.
        label_kind: the labels that it learns; None: any, or none.
        single_input: whether the features must be one tensor of numbers.
        threshold: probability from which an example is predicted to have a label.
        derived_metrics: names of metrics that are functions of others; known after `build`.
        num_states: length of the vector that its steps return as `STATES` next to the metrics: sums
            that are no means, from which `reported` computes metrics; known after `build`.
        eval_part: `eval_part(batch, step, share, states)` returns what some examples add to an
            evaluation, as a training step does; in place of `eval_step`. All of them count, and the
            last batch has its true size. `share`, a number, is their fraction of the batch that is
            evaluated; `states`, [num_states] float32, are the states so far.
        predict_step: returns the first model's predictions for one replica's batch, name ->
            [B, ...]. Their names are in `PREDICTIONS`. Without it a task has no metrics but its
            own.
        reads_prompts: whether it predicts what follows the prompts of `predict.prompts`.
        make_evaluator: `make_evaluator(inference, source, predictor)` makes what evaluates a split,
            as a `trainer.engine.evaluation.evaluator.Evaluator` does. The arguments are a
            `trainer.engine.evaluation.inference.Inference`, the split as a
            `trainer.engine.graph.input.feed.Source`, and what predicts it, if anything does.
        make_predictor: `make_predictor(inference, source)` makes what predicts a split, a
            `trainer.engine.evaluation.evaluator.Predictor`, or None.
        serve: `serve(dataset, sampling)` returns what an export serves, as `Served`, where that is
            not the predictions for features.
    """

    direction: Mapping[str, str] | None = None
    primary_metric: str | None = None
    label_kind: LabelKind | None = None
    single_input: bool = False
    threshold: float | None = None
    derived_metrics: Sequence[str] = ()
    num_states: int = 0
    eval_part: Callable[[Batch, Any, float, tf.Tensor], Metrics] | None = None
    predict_step: Callable[[Batch], Mapping[str, tf.Tensor]] | None = None
    reads_prompts: bool = False
    make_evaluator: Callable[[Any, Any, Any], Any] | None = None
    make_predictor: Callable[[Any, Any], Any] | None = None
    serve: Callable[[Dataset, Sampling], Served] | None = None

    def reported(self, metrics: Mapping[str, float], states: Any) -> dict[str, float]:
        """Return the metrics, with those of the summed states, [num_states] float64."""
        return dict(metrics)

    def derive_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return all metrics that are reported, from those in `metrics`, NaN where none counted.

        Each is over the whole split: so the mean of ratios is that of the split's ratios, not a
        mean over batches.
        """
        return dict(metrics)

    def serve_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Return what the exported model returns for a batch, name -> [B, ...]."""
        assert self.predict_step is not None
        return self.predict_step(batch)


@dataclass(frozen=True)
class Node:
    """A choice that is an option of a task: configured with it, and built by its `build`.

    The constructor of a task receives one where the annotation of an option is one of the classes
    below. Annotations are read from source, without an import, so they must have these names.

    Attributes:
        key: its dotted key, such as `task.generator`.
        options: `_target_` and its options, as plain containers.
    """

    key: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the option."""
        return self.key.rpartition(".")[2]


class ModelNode(Node):
    """A model, for `TaskParts.model`: `/model@generator: <choice>` in the task's YAML file."""


class OptimizerNode(Node):
    """An optimizer, for `TaskParts.optimizer`: `/optimizer@generator_optimizer: <choice>`."""


class ScheduleNode(Node):
    """A schedule, for `TaskParts.optimizer`: `/schedule@generator_schedule: <choice>`."""


class Sampling(Protocol):
    """How tokens are chosen.

    Attributes:
        tokens: how many follow a prompt.
        temperature: what logits are divided by; 0: the most likely token is chosen.
        top_k: choose among so many of the most likely tokens; None: among all.
        seed: of the random numbers.
    """

    tokens: int
    temperature: float
    top_k: int | None
    seed: int


class Tokenizer(Protocol):
    """Turns texts into tokens and back."""

    @property
    def encode(self) -> Callable[[Sequence[str]], Sequence[Sequence[int]]]:
        """The function that returns the tokens of each text."""

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """The function that returns the text of tokens."""


@runtime_checkable
class HasTokenizer(Protocol):
    """A dataset of tokens that can become text."""

    @property
    def tokenizer(self) -> Tokenizer:
        """What made the tokens of the texts."""
