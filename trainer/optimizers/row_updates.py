"""Updates of a table by the rows of its gradient, without a look at its other rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class RowUpdates:
    """Takes gradients in rows; each row is once in them.

    For a subclass of it and then of an optimizer of `tf.keras.optimizers.legacy` whose
    `_resource_apply_sparse` changes no other rows.

    Attributes:
        lazy: whether rows without a gradient stay as they are, also where the dense computation
            changes them, as by their momentum.
        can_be_lazy: whether that can be set.
    """

    lazy = False
    can_be_lazy = True

    def updates_rows(self, variable: tf.Variable) -> bool:
        """Return whether a variable is updated by the rows of its gradient."""
        return self.lazy or self._keeps_other_rows(variable)

    def _keeps_other_rows(self, variable: tf.Variable) -> bool:
        """Return whether the dense computation keeps rows whose gradient is zero, to the bit."""
        return False

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        # Keras adds up the rows of an index here, and there is but one of each.
        optimizer: Any = self
        return optimizer._resource_apply_sparse(grad, var, indices, apply_state)


def add_to_rows(variable: tf.Variable, indices: tf.Tensor, change: tf.Tensor) -> tf.Operation:
    """Add to rows of a variable, in one operation: no update of another worker is lost."""
    return tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=indices, updates=change)


def read_rows(variable: tf.Variable, indices: tf.Tensor) -> tf.Tensor:
    """Return rows of a variable; `tf.gather` would read the whole of one that is mirrored."""
    return tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=indices, dtype=variable.dtype.base_dtype
    )
