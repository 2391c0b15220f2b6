"""The protocols of datasets: examples by their index, in splits, or as a stream.

A user's class needs no base class. Members that not every dataset or split has are declared in
`DatasetDefaults` and `SplitDefaults`, with what counts for one without; `with_defaults` reads them.

A dataset, a task and a metric may have an attribute `label_kind`: what its labels are. Without it a
dataset has classes, and a task or a metric is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from trainer.protocols.defaults import with_defaults

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

Batch: TypeAlias = dict[str, Any]
"""Named tensors whose first dimension is the example.

Two names are the engine's own and are in every batch that a task receives: `weight`, [B] float32, 0
for an example that must not count (padding, a skipped image), else 1; and `id`, [B] int64, the
example's index in its split. Three are the data's: `features`, which the model is called with,
`label`, what it is compared with, both a tensor or a nest (dict, tuple) of tensors; and
`sample_weight`, [B] or [B, ...] float32, how much the loss of each example, or position in it,
counts, where the user gives that: a tensor, or a nest of them for several outputs.
"""


@runtime_checkable
class Split(Protocol):
    """One split of a dataset, by random access.

    Attributes:
        num_examples: number of examples.
        in_memory: whether `fetch` only indexes memory, and so runs inside the compiled training
            loop; if not, it runs in a prefetching tf.data pipeline.
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


class SplitDefaults:
    """Optional members of a split.

    Attributes:
        augments: whether `fetch` takes the draws of `Dataset.transform` as a second argument, in
            training.
        labels: the labels of all its examples, [N, ...], without reading them.
        arrays: of one held in memory: its nests of arrays [N, ...], by name.
        hashes: a number for each example, [N] in [0, 1), that chooses what goes into the validation
            split: later examples change none.
        unit: how many consecutive examples stay together in the order of an epoch; 0: all, every
            epoch has the split's own order.
        batches: of a stream that comes in batches: makes a dataset of batches of so many examples,
            without an end; the same examples in the same order as `Stream.stream`.
        parts: the sources of a mixture, each with `name`, `size` and `share`, which are in it one
            after the other; in training each has its fraction of the positions.
    """

    augments: bool = False
    labels: np.ndarray | None = None
    arrays: Mapping[str, Any] | None = None
    hashes: np.ndarray | None = None
    unit: int = 1
    batches: Callable[[int], tf.data.Dataset] | None = None
    parts: Sequence[Any] = ()


class DatasetDefaults:
    """Optional members of a dataset; see also `Fitted` and `HasFiles`.

    Attributes:
        feature_specs: of features that are not one tensor of numbers: a nest (dict, tuple) of
            `tf.TensorSpec` of one example, as the model receives it; None: one tensor of
            `input_shape`. Then `input_shape` is the nest of the shapes.
        weighted: whether its training examples have `sample_weight`.
        class_names: a name for each class.
        label_kind: what its labels are, see `LabelKind`; None: anything, or none,
            for tasks that are not checked.
        target_scale: of numbers as labels: mean and standard deviation of each target.
        max_value: the value of white in the images of its splits; None: 255 of integers, else 1.
        image_size: (height, width) to which `transform` resizes images; None: as fetched.
        group_size: how many consecutive examples `transform` joins in training: a replica's part of
            the batch, or a shard, is a multiple of it.
        vocabulary_size: of tokens: how many different ones there are.
        digest: returns a text that changes with the training examples, of a dataset whose function
            may return others by mistake: it must be the same in all processes and attempts.
        validation: a split that selects checkpoints instead of `test`.
        features_rule: what the `features` of an exported model are, in words.
        column_specs: of a table: the columns of raw rows that `from_columns` takes, by name.
        decode: makes one example's `features`, as `fetch` returns them, of the bytes of a file, a
            scalar string.
        from_columns: makes the model's input, [B, ...], of raw columns.
        from_texts: makes the model's input, [B, ...], of texts, [B] string.
    """

    feature_specs: Any = None
    weighted: bool = False
    class_names: Sequence[str] | None = None
    label_kind: Literal["class", "number", "multilabel"] | None = "class"
    target_scale: Sequence[tuple[float, float]] | None = None
    max_value: float | None = None
    image_size: Sequence[int] | None = None
    group_size: int = 1
    vocabulary_size: int | None = None
    digest: Callable[[], str] | None = None
    validation: Split | None = None
    features_rule: str | None = None
    column_specs: Mapping[str, tf.TensorSpec] | None = None
    decode: Callable[[tf.Tensor], tf.Tensor] | None = None
    from_columns: Callable[[Mapping[str, tf.Tensor]], tf.Tensor] | None = None
    from_texts: Callable[[tf.Tensor], tf.Tensor] | None = None


@runtime_checkable
class Fitted(Protocol):
    """A dataset that is fitted to its training split before any other use.

    Either `fit` or `restore` is called once. What was learned is kept in the run directory and
    exported, so that other data, to continue with or to predict, are read in the same way.
    """

    def fit(self) -> str:
        """Fit to the training split; return what was learned, as text."""

    def restore(self, fitted: str) -> None:
        """Use what `fit` has returned, maybe for other data."""

    def describe(self) -> list[str]:
        """Return lines for the start of a run."""


@runtime_checkable
class HasFiles(Protocol):
    """A dataset that can also read the user's image files."""

    def files(self, paths: Sequence[Path]) -> Split:
        """Return a split of these files, without labels; unreadable files have weight 0."""


def paths(nest: Any, prefix: str = "", separator: str = "/") -> list[str]:
    """Return a name for each leaf, in the order of `tf.nest.flatten`: keys, and numbers from 1.

    Args:
        nest: dicts and tuples, also nested, or a leaf alone.
        prefix: what all names start with; the name of a leaf alone.
        separator: between the parts of a name.
    """
    if isinstance(nest, Mapping):
        parts = [(key, nest[key]) for key in sorted(nest)]
    elif isinstance(nest, tuple | list):
        parts = list(enumerate(nest, 1))
    else:
        return [prefix]
    start = f"{prefix}{separator}" if prefix else ""
    return [name for key, part in parts for name in paths(part, f"{start}{key}", separator)]


LabelKind: TypeAlias = Literal["class", "number", "multilabel"]
"""What an example's `label` is, and what a task's `predict_step` returns.

class: the number of its class, [B] integers; `probabilities`, [B, num_classes] float32.
number: targets to predict, [B] or [B, targets] float32; `prediction`, [B, targets] float32.
multilabel: whether it has each label, [B, labels] integers, 0 or 1; `probabilities`, [B, labels]
float32, and `predicted`, [B, labels] integers.
"""

MetricKind: TypeAlias = LabelKind | Literal["sample"]
"""What a metric compares with predictions: labels; or (sample) none, of generated examples."""

PREDICTIONS: Mapping[MetricKind, str] = {
    "class": "probabilities",
    "number": "prediction",
    "multilabel": "probabilities",
    "sample": "sample",
}
"""Which of a task's predictions its metrics are given."""

IN_WORDS: Mapping[MetricKind | None, str] = {
    "class": "one class an example",
    "number": "numbers",
    "multilabel": "several labels an example",
    "sample": "generated examples",
    None: "of another form, or missing",
}


def label_kind_of(owner: Any) -> LabelKind | None:
    """Return the kind of labels of a dataset or a metric: its `label_kind`, or `class`.

    None: they may be anything.
    """
    return with_defaults(owner, DatasetDefaults).label_kind


class KnownLabels(Protocol):
    """Facts about the labels of the training split.

    Attributes:
        label_kind: their kind.
    """

    label_kind: LabelKind | None

    @property
    def class_counts(self) -> Sequence[int]:
        """Number of examples of each class.

        Raises ConfigError where that would read all examples.
        """

    @property
    def target_scale(self) -> Sequence[tuple[float, float]] | None:
        """Mean and standard deviation of each target; None: the dataset is not fitted."""
