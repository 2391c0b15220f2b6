"""The protocols of datasets: examples by their index, in splits, or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import tensorflow as tf

Batch: TypeAlias = dict[str, Any]
"""Named tensors whose first dimension is the example.

Two names are the engine's own and are in every batch that a task receives: `weight`, [B] float32, 0
for an example that must not count (padding, a skipped image), else 1; and `id`, [B] int64, the
example's index in its split.
"""


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
    fitted to its training split has the methods of
    `trainer.worker.building.fitted_dataset.Fitted`. Labels may be other than classes; see
    `trainer/protocols/labels.py`.
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
