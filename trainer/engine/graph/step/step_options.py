"""Options that all steps of a run have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import tensorflow as tf

from trainer.engine.graph.exchange.collectives import ExchangeTimer
from trainer.engine.graph.state.variables import LossScale
from trainer.engine.graph.step.row_gradients import Gradient
from trainer.engine.graph.step.update_check import Clip, DivergenceMonitor

_FUSED = tf.keras.optimizers.legacy

Gradients: TypeAlias = list[Gradient]
Exchange: TypeAlias = Callable[
    [tf.distribute.ReplicaContext, list[tf.Tensor], list[tf.Tensor]],
    tuple[list[tf.Tensor], list[tf.Tensor]],
]
Optimizer: TypeAlias = tf.keras.optimizers.legacy.Optimizer


def fused_class(optimizer: object) -> str:
    """Return the name of a class with fused updates that can replace an optimizer of another."""
    name = type(optimizer).__name__.removesuffix("Optimizer")
    return f"tf.keras.optimizers.legacy.{name if hasattr(_FUSED, name) else 'Adam'}"


@dataclass(frozen=True)
class StepOptions:
    """Options of every step.

    Attributes:
        accumulate: micro-batches in a replica's batch, or in each of its shards.
        shards: parts that the global batch is always computed in; None: one for each replica, and
            sums are in no fixed order.
        optimizer_reduces: whether the optimizer's own reduction cannot be left out; it is then
            given its fraction of the sum.
        exchange: sums gradients, and other tensors that must not be rounded, over the replicas;
            None: as one `all_reduce`.
        divergence_monitor: judges each update before it is made; None: no update is judged.
        overlap: whether shards and micro-batches may be computed at the same time, on several
            devices of a replica, instead of one after the other.
        adds_differences: whether moving statistics that a model notes are changed by adding:
            steps of several workers change them at the same time.
        rows: whether gradients of large tables may stay in rows, whose number is unknown
            before a step.
        note_rows: called while an update is traced, with the optimizer and each variable whose
            gradient is in rows.
    """

    accumulate: int = 1
    clip: Clip = field(default_factory=Clip)
    jit: bool = False
    loss_scale: LossScale | None = None
    optimizer_reduces: bool = False
    exchange: Exchange | None = None
    divergence_monitor: DivergenceMonitor | None = None
    shards: int | None = None
    exchange_timer: ExchangeTimer | None = None
    overlap: bool = False
    adds_differences: bool = False
    rows: bool = True
    note_rows: Callable[[Optimizer, tf.Variable], None] = lambda optimizer, variable: None

    def passes(self, num_replicas: int) -> int:
        """Return how many passes compute a global batch, on all replicas."""
        return (self.shards or num_replicas) * self.accumulate

    @property
    def captures_updates(self) -> bool:
        """Whether what forward passes would assign is captured, and assigned with the update."""
        return self.shards is not None or self.accumulate > 1
