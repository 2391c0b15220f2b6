"""What is clipped and judged: whether an update is sound, and what follows from one that is not.

Clipping is of the global batch's gradient, of all weights or a group. The decision is made in the
graph, after the one reduction over the replicas and before the update: all replicas and processes
have the same numbers there, so they agree without communicating again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.config.rules import CLIPS
from trainer.config.schema import MAX_SKIPS, Divergence
from trainer.engine.graph.input.feed import block_of
from trainer.engine.graph.placement.step_devices import on_own_device
from trainer.engine.graph.state.variables import replicated
from trainer.engine.graph.state.weight_paths import variable_key
from trainer.engine.graph.step.row_gradients import Gradient, map_values
from trainer.errors import ConfigError, NonFiniteError
from trainer.protocols import OptimizerDefaults, with_defaults

ADVICE = "try a smaller optimizer.learning_rate, train.clip_norm=1, or schedule.warmup_steps"

_UNUSED = np.iinfo(np.int64).max  # fills up the list of blocks: no step ever reaches it


@dataclass(frozen=True)
class Clip:
    """How a gradient is clipped; at most one of these is set.

    Attributes:
        norm: the global norm to which it is scaled down; None: it is not.
        value: the largest absolute value of an element, or None.
        each: the norm to which the gradient of each variable is scaled down; None: it is not.
    """

    norm: float | None = None
    value: float | None = None
    each: float | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Clip:
        """Return how `clip_norm` or another of `CLIPS` among some options clips, if one is set."""
        return cls(**{name.removeprefix("clip_"): options.get(name) for name in CLIPS})

    def apply(self, gradients: list[Gradient], norm: tf.Tensor | None = None) -> list[Gradient]:
        """Return the clipped gradients; `norm` is their global norm, if it is known."""
        if self.norm is not None:
            return list(tf.clip_by_global_norm(gradients, self.norm, norm)[0])
        if self.each is not None:
            return [on_own_device(tf.clip_by_norm, x, self.each) for x in gradients]
        if self.value is not None:
            bound = self.value

            def clipped(values: tf.Tensor) -> tf.Tensor:
                return tf.clip_by_value(values, -bound, bound)

            return [on_own_device(map_values, x, clipped) for x in gradients]
        return gradients


def clip(
    gradients: list[Gradient],
    norm: tf.Tensor,
    variables: Sequence[tf.Variable],
    optimizer: Any,
    common: Clip,
) -> list[Gradient]:
    """Return the gradients of a model, clipped as the groups of its optimizer define.

    Args:
        optimizer: what its `clips` name is clipped apart, and all by its `own_clips` after that.

    Raises:
        ConfigError: a weight in pieces is clipped by its norm.
    """
    view = with_defaults(optimizer, OptimizerDefaults)
    if groups := view.clips:
        result = _by_group(gradients, variables, groups, common)
    else:
        result = common.apply(gradients, norm)
    for own in view.own_clips:
        if own.each is not None and any(hasattr(v, "_sharded_container") for v in variables):
            raise ConfigError(
                "model: the optimizer's clipnorm is the norm of whole weights, which parameter "
                "servers hold in pieces; add strategy.partitioner=none"
            )
        result = own.apply(result)
    return result


def _by_group(
    gradients: list[Gradient], variables: Sequence[tf.Variable], groups: Any, common: Clip
) -> list[Gradient]:
    keys = [variable_key(variable) for variable in variables]
    apart = {key for members, _ in groups for key in members}
    result = list(gradients)
    for members, how in [*groups, (set(keys) - apart, common)]:
        positions = [i for i, key in enumerate(keys) if key in members]
        if positions:
            clipped = how.apply([gradients[i] for i in positions])
            for i, gradient in zip(positions, clipped, strict=True):
                result[i] = gradient
    return result


class Verdict(NamedTuple):
    """What the divergence monitor found with an update.

    Attributes:
        is_bad: whether the update is not sound, bool scalar.
        loss: the mean loss, float32 scalar.
        norm: the global norm of the gradient, float32 scalar.
        limit: the largest loss that is no spike, float32 scalar.
    """

    is_bad: tf.Tensor
    loss: tf.Tensor
    norm: tf.Tensor
    limit: tf.Tensor

    @classmethod
    def unpack(cls, numbers: tf.Tensor) -> Verdict:
        """Return the verdict that was packed into `numbers`, [VERDICT_SIZE] float32."""
        is_bad, loss, norm, limit = tf.unstack(numbers)
        return cls(is_bad > 0.0, loss, norm, limit)

    def pack(self) -> tf.Tensor:
        """Return the verdict as one vector, [VERDICT_SIZE] float32, to leave a replica as such."""
        return tf.stack([tf.cast(self.is_bad, tf.float32), self.loss, self.norm, self.limit])

    def where(self, condition: tf.Tensor, other: Verdict) -> Verdict:
        """Return this verdict if `condition` (bool scalar) holds, else the other."""
        return Verdict(*(tf.where(condition, x, y) for x, y in zip(self, other, strict=True)))


VERDICT_SIZE = len(Verdict._fields)


def no_verdict() -> Verdict:
    """Return the verdict before the first update: nothing is bad."""
    return Verdict.unpack(tf.zeros([VERDICT_SIZE]))


class DivergenceStatus(NamedTuple):
    """The state of the divergence monitor within a compiled loop.

    Attributes:
        skipped: updates that were dropped in the whole run, int64.
        step: the first step that ends the loop's work, int64; -1: none does.
    """

    skipped: tf.Tensor
    step: tf.Tensor
    verdict: Verdict


class LossWindow:
    """The newest losses of sound updates, [size] float32, in a ring."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.losses = replicated(tf.zeros([size]), "losses")
        self.count = replicated(tf.constant(0, tf.int64), "count")

    def limit(self, sigma: float) -> tf.Tensor:
        """Return mean + sigma * standard deviation, float32; infinity until the window is full."""
        mean, variance = tf.nn.moments(tf.cast(self.losses.read_value(), tf.float64), axes=[0])
        return tf.where(
            self.count >= self.size, tf.cast(mean + sigma * tf.sqrt(variance), tf.float32), math.inf
        )

    def add(self, loss: tf.Tensor, counts: tf.Tensor) -> None:
        """Add a loss if it counts (bool scalar)."""
        losses = self.losses.read_value()
        count = self.count.read_value()
        added = tf.tensor_scatter_nd_update(losses, [[count % self.size]], [loss])
        self.losses.assign(tf.where(counts, added, losses))
        self.count.assign(count + tf.cast(counts, tf.int64))


class DivergenceMonitor:
    """Judges updates, and remembers which samples are left out. Created in `strategy.scope()`.

    What it remembers is the same for all actions: a run may be continued with another one.

    Attributes:
        left_out: numbers of the blocks of samples that are left out, [MAX_SKIPS] int64, ascending.
        windows: for each optimizer, by name, the losses of its updates.
    """

    def __init__(self, config: Divergence, optimizers: Mapping[str, Any]) -> None:
        self._config = config
        self.skipped = replicated(tf.constant(0, tf.int64), "skipped")
        self.left_out = replicated(tf.fill([MAX_SKIPS], tf.constant(_UNUSED, tf.int64)), "left_out")
        self.windows = {name: LossWindow(config.window) for name in optimizers}
        self._names = {id(optimizer): name for name, optimizer in optimizers.items()}

    @property
    def skips(self) -> bool:
        """Whether the update of a step that is not sound is dropped, and training continues."""
        return self._config.action == "skip"

    @property
    def rolls_back(self) -> bool:
        """Whether training continues from before a step that is not sound, without its samples."""
        return self._config.action == "rollback"

    def trackables(self) -> dict[str, Any]:
        """Return everything that is saved, by name."""
        windows = {
            name: {"losses": window.losses, "count": window.count}
            for name, window in self.windows.items()
        }
        return {"skipped": self.skipped, "left_out": self.left_out, "windows": windows}

    def check(
        self, optimizer: Any, loss_sum: tf.Tensor, weight: tf.Tensor, norm: tf.Tensor
    ) -> Verdict:
        """Judge an update, in replica context.

        All arguments but the first are the same on all replicas.

        Args:
            norm: the global norm of the gradient, float32 scalar; 0 if it is not finite and that
                is no reason for concern.
        """
        sound = tf.math.is_finite(loss_sum + norm)
        loss = tf.math.divide_no_nan(loss_sum, weight)
        limit = tf.constant(math.inf)
        if self._config.spike_sigma is not None:
            window = self.windows[self._names[id(optimizer)]]
            limit = window.limit(self._config.spike_sigma)
            sound &= loss <= limit
            window.add(loss, sound & (weight > 0.0))
        return Verdict(tf.logical_not(sound), loss, norm, limit)

    def begin(self) -> DivergenceStatus:
        """Return the status at the beginning of a compiled loop, outside the replicas."""
        return DivergenceStatus(self.skipped.read_value(), tf.constant(-1, tf.int64), no_verdict())

    def note(self, status: DivergenceStatus, step: tf.Tensor, verdict: Verdict) -> DivergenceStatus:
        """Return the status after a step.

        The loop continues, though what comes after a step that ends its work is discarded: a
        condition that waits for the step's numbers would keep TensorFlow from gathering the next
        batch meanwhile.
        """
        skipped = status.skipped
        ends = verdict.is_bad & (status.step < 0)
        if self.skips:
            ends &= skipped >= self._config.max_skips
            skipped += tf.cast(verdict.is_bad, tf.int64)
        return DivergenceStatus(
            skipped, tf.where(ends, step, status.step), verdict.where(ends, status.verdict)
        )

    def end(self, status: DivergenceStatus) -> None:
        """Store the status at the end of a compiled loop, outside the replicas."""
        if self.skips:
            self.skipped.assign(status.skipped)

    def report(self) -> dict[str, float]:
        """Return values for the log, by name: how many updates the run has dropped, if any."""
        skipped = int(self.skipped.numpy()) if self.skips else 0
        return {"updates_skipped": float(skipped)} if skipped else {}

    def describe(self, step: int, verdict: Verdict) -> str:
        """Return one line that describes the bad update after `step` steps."""
        loss = float(verdict.loss)
        norm = float(verdict.norm)
        if not math.isfinite(loss):
            return f"the loss became {loss} after {step} steps"
        if not math.isfinite(norm):
            return f"the norm of the gradient became {norm} after {step} steps"
        limit = float(verdict.limit)
        allowed = f"divergence.spike_sigma ({self._config.spike_sigma}) allows {limit:.6g}"
        return f"the loss jumped to {loss:.6g} after {step} steps, where {allowed}"

    def error(self, reason: str) -> NonFiniteError:
        """Return the error that ends the run for a reason that `describe` gave."""
        exhausted = (
            ""
            if self._config.action == "stop"
            else f" when divergence.max_skips ({self._config.max_skips}) leaves no more room"
        )
        return NonFiniteError(f"{reason}{exhausted}; {ADVICE}")

    def describe_rollback(self, step: int, blocks: list[int]) -> str:
        """Return which steps' samples a rollback leaves out, and how many blocks that makes."""
        first = self.first_left_out(step)
        steps = f"step {step}" if first == step else f"steps {first} to {step}"
        return f"{steps} ({len(blocks)} of at most {self._config.max_skips})"

    def first_left_out(self, step: int) -> int:
        """Return the first of the steps whose samples are left out when `step` diverges."""
        return max(0, step - self._config.rollback_steps + 1)

    def blocks(self) -> list[int]:
        """Return the blocks that are left out, ascending."""
        return [int(block) for block in self.left_out.numpy() if block != _UNUSED]

    def blocks_without(self, step: int) -> list[int] | None:
        """Return the blocks left out once `step` has diverged; None: they are too many."""
        steps = tf.range(self.first_left_out(step), step + 1, dtype=tf.int64)
        blocks = sorted(
            [*self.blocks(), *block_of(steps, self.left_out.read_value()).numpy().tolist()]
        )
        return blocks if len(blocks) <= self._config.max_skips else None

    def leave_out(self, blocks: list[int]) -> None:
        """Leave out these blocks, also from the order of samples when the input is opened again."""
        self.left_out.assign(blocks + [_UNUSED] * (MAX_SKIPS - len(blocks)))
