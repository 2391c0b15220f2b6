"""What the engine reads of an optimizer that not all of `tf.keras.optimizers.legacy` have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OptimizerDefaults:
    """The defaults of an optimizer.

    Attributes:
        updates_per_step: updates that it is built for; None: any number.
        clips: how the gradients of some weights are clipped, each with the keys of its variables.
        own_clips: how all are clipped after that.
        lazy: whether rows without a gradient stay as they are.
        can_be_lazy: whether that can be set.
    """

    updates_per_step: int | None = None
    clips: Sequence[Any] = ()
    own_clips: Sequence[Any] = ()
    lazy: bool = False
    can_be_lazy: bool = False

    def updates_rows(self, variable: Any) -> bool:
        """Return whether a variable is updated by the rows of its gradient."""
        return False

    def member_of(self, variable: Any) -> Any:
        """Return the optimizer of a variable's group."""
        return self

    def finish(self) -> None:
        """Give the variables their final values, at the end of the training."""
