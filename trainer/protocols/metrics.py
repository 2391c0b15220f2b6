"""The protocols of metrics: all that the engine uses of them.

They are structural: a user's class needs no base class and imports nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainer.protocols.data import Dataset, MetricKind

if TYPE_CHECKING:
    import numpy as np


class Metric(Protocol):
    """A metric of a whole split, with the interface of Keras' metrics.

    It lives on the chief, outside the strategy, and receives every example once, in the order of
    the split. What else it may have is in `MetricDefaults`.
    """

    def update_state(self, y_true: Any, y_pred: Any) -> Any:
        """Add examples: labels, [B] int64, and probabilities, [B, num_classes] float32.

        Of numbers targets and predictions, both [B, targets] float32; of several labels these,
        [B, labels] int64, and their probabilities, [B, labels] float32; of generated examples
        None, and these, [B, *input_shape] float32.
        """

    def result(self) -> Any:
        """Return the value so far: a number, or name -> number."""

    def reset_state(self) -> None:
        """Forget all examples."""


class MetricDefaults:
    """Optional members of a metric, with their defaults.

    If it has an attribute `class_names`, that is set to the names of the classes, or to their
    numbers as text. If it has `threshold`, and is for several labels, that is set to the task's.

    Attributes:
        label_kind: the labels of the tasks that it is for; None: any. `sample`: it is for examples
            that a task generates.
        direction: which is better of a value that checkpoints or sweeps select by, as a literal of
            the class: `max` or `min`, or name -> one of them, where that of `recall` counts for
            `recall/cat` too.
        names: names of its values; empty: its own.
        num_samples: how many examples are generated for it at each evaluation; always the same.
        begin: `begin(dataset)` prepares to compare generated examples with a dataset; called once,
            in every process. It may raise a ConfigError.
    """

    label_kind: MetricKind | None = None
    direction: str | Mapping[str, str] | None = None
    names: Sequence[str] = ()
    num_samples: int = 0
    begin: Callable[[Dataset], None] | None = None


@runtime_checkable
class HasFigures(Protocol):
    """A metric that can also be seen, as an image in TensorBoard, and read, as `<name>.json`."""

    def figure(self) -> np.ndarray:
        """Draw what was counted, [H, W, C] uint8."""

    def table(self) -> Mapping[str, Any]:
        """Return what was counted, as plain containers."""
