"""An optimizer whose gradients are summed over the replicas before it updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from trainer.annotations import OneOf
from trainer.config.options import constraints
from trainer.engine.graph.state.train_state import optimizer_trackables
from trainer.engine.graph.step.step_options import Optimizer, fused_class
from trainer.errors import ConfigError
from trainer.own_loop.user_step import current_step


class SharedOptimizer:
    """Updates variables by the sum or mean of all replicas' gradients.

    The gradient is clipped after it was reduced, so clipping does not depend on the number of
    replicas. The idea of `wrap_optimizer` is TF-Replicator's (Buchlovsky et al. 2019).

    Attributes:
        optimizer: the optimizer that is wrapped.
        variables: the variables that it updates.

    Args:
        reduce: mean or sum, over the replicas.
        clip_norm: global norm to which the reduced gradient is clipped; None: it is not clipped.

    Raises:
        ConfigError: it is an optimizer of another kind, or an option is wrong.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        variables: Sequence[tf.Variable],
        *,
        reduce: str = "mean",
        clip_norm: float | None = None,
    ) -> None:
        if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            raise ConfigError(
                f"loop: wrap_optimizer needs an optimizer of tf.keras.optimizers.legacy, whose "
                f"updates are fused; {type(optimizer).__name__} is none, use "
                f"one such as {fused_class(optimizer)}"
            )
        if problem := constraints.check_value("reduce", reduce, OneOf("mean", "sum")):
            raise ConfigError(f"loop: wrap_optimizer: {problem}")
        if clip_norm is not None and clip_norm <= 0:
            raise ConfigError(f"loop: wrap_optimizer: clip_norm ({clip_norm}) must be > 0")
        self.optimizer = optimizer
        self.variables = list(variables)
        self._reduce = reduce
        self._clip_norm = clip_norm
        # Slots exist before the restore: a checkpoint that lacks one is then an error.
        optimizer._create_all_weights(self.variables)

    def trackables(self) -> dict[str, Any]:
        """Return the optimizer's variables as they are saved."""
        return optimizer_trackables(self.optimizer, self.variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, tf.Variable]]) -> None:
        """Reduce this replica's gradients with those of all others, clip them, and update.

        Args:
            grads_and_vars: the gradient and the variable of each update; None: no gradient.

        Raises:
            ValueError: a variable is none of those that the optimizer was wrapped for.
        """
        step = current_step("apply_gradients")
        pairs = list(grads_and_vars)
        known = {id(variable) for variable in self.variables}
        for _, variable in pairs:
            if id(variable) not in known:
                raise ValueError(
                    f"{variable.name} is none of the variables that wrap_optimizer was given"
                )
        dense = [_dense(gradient, variable) for gradient, variable in pairs]
        reduced, _ = step.sum_over_replicas(dense, [])
        if self._reduce == "mean":
            reduced = [gradient / step.num_replicas for gradient in reduced]
        if self._clip_norm is not None:
            reduced, _ = tf.clip_by_global_norm(reduced, self._clip_norm)
        step.update(self.optimizer, [variable for _, variable in pairs], reduced)

    def minimize(self, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        """Update all variables by the gradient of this replica's loss, which `tape` recorded."""
        gradients = tape.gradient(loss, self.variables)
        self.apply_gradients(zip(gradients, self.variables, strict=True))


def _dense(gradient: Any, variable: tf.Variable) -> tf.Tensor:
    if gradient is None:
        return tf.zeros(variable.shape, tf.float32)
    return tf.cast(tf.convert_to_tensor(gradient), tf.float32)
