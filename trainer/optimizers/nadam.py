"""Nadam: Adam that looks ahead by its momentum."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt
from trainer.optimizers.adam import Adam
from trainer.optimizers.common import WeightDecay


def nadam(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999,
    epsilon: Annotated[float, Gt(0)] = 1e-7,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adam with Nesterov's momentum (Dozat 2016), of constant beta_1 and Adam's bias correction."""
    return Nadam(
        learning_rate,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        weight_decay=weight_decay,
        name="Nadam",
    )


class _NesterovAdam(Adam):
    """Adam whose kernel is asked for Nesterov's momentum, which Keras never does."""

    nesterov = True

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None
    ) -> tf.Operation:
        numbers = apply_state[(var.device, var.dtype.base_dtype)]
        return tf.raw_ops.ResourceApplyAdam(
            var=var.handle,
            m=self.get_slot(var, "m").handle,
            v=self.get_slot(var, "v").handle,
            beta1_power=numbers["beta_1_power"],
            beta2_power=numbers["beta_2_power"],
            lr=numbers["lr_t"],
            beta1=numbers["beta_1_t"],
            beta2=numbers["beta_2_t"],
            epsilon=numbers["epsilon"],
            grad=grad,
            use_nesterov=True,
        )


class Nadam(WeightDecay, _NesterovAdam):
    """The fused kernel after the decay."""
