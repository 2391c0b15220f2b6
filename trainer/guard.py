"""Whether a step is sound, and what is done about one that is not.

The decision falls in the graph, after the one reduction over the replicas and before the update: all replicas and processes
have the same numbers there, so they decide alike without another word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.errors import NonFiniteError
from trainer.input import block_of
from trainer.schema import MAX_SKIPS, Divergence
from trainer.state import replicated

ADVICE = "try a smaller optimizer.learning_rate, train.clip_norm=1, or schedule.warmup_steps"

_NOBODY = np.iinfo(np.int64).max  # fills the list of blocks up: no step ever comes to it


class Trouble(NamedTuple):
    """What a compiled loop has met with.

    Attributes:
        skipped: updates that were dropped in the whole run, int64.
        step: the first step that ends the loop's work, int64; -1: none does.
        finding: what was found with it, as `Guard.judge` gives it.
    """

    skipped: tf.Tensor
    step: tf.Tensor
    finding: tf.Tensor


class LossWindow:
    """The newest losses of sound updates, in a ring.

    Attributes:
        losses: [size] float32.
        count: how many there have been, int64.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.losses = replicated(tf.zeros([size]), "losses")
        self.count = replicated(tf.constant(0, tf.int64), "count")

    def limit(self, sigma: float) -> tf.Tensor:
        """Gives mean + sigma * standard deviation, float32; infinity while the window is not full."""
        mean, variance = tf.nn.moments(tf.cast(self.losses.read_value(), tf.float64), axes=[0])
        return tf.where(self.count >= self.size, tf.cast(mean + sigma * tf.sqrt(variance), tf.float32), math.inf)

    def add(self, loss: tf.Tensor, counts: tf.Tensor) -> None:
        """Adds a loss, if it counts (bool scalar)."""
        losses, count = self.losses.read_value(), self.count.read_value()
        added = tf.tensor_scatter_nd_update(losses, [[count % self.size]], [loss])
        self.losses.assign(tf.where(counts, added, losses))
        self.count.assign(count + tf.cast(counts, tf.int64))


class Guard:
    """Judges steps, and remembers what was left out. Made in `strategy.scope()`.

    What it remembers is the same whatever the action: a run may be continued with another one.

    Attributes:
        skipped: updates that were dropped, int64.
        left_out: numbers of the blocks of samples that are left out, [MAX_SKIPS] int64, ascending.
        windows: for each optimizer, by name, the losses of its updates.

    Args:
        config: what is to be done.
        optimizers: the task's optimizers by name.
    """

    def __init__(self, config: Divergence, optimizers: Mapping[str, Any]) -> None:
        self._config = config
        self.skipped = replicated(tf.constant(0, tf.int64), "skipped")
        self.left_out = replicated(tf.fill([MAX_SKIPS], tf.constant(_NOBODY, tf.int64)), "left_out")
        self.windows = {name: LossWindow(config.window) for name in optimizers}
        self._names = {id(optimizer): name for name, optimizer in optimizers.items()}

    @property
    def skips(self) -> bool:
        """Whether the update of a step that is not sound is dropped, and training goes on."""
        return self._config.action == "skip"

    @property
    def rolls_back(self) -> bool:
        """Whether training goes on from before a step that is not sound, without its samples."""
        return self._config.action == "rollback"

    def trackables(self) -> dict[str, Any]:
        """Gives all that is saved, by name."""
        windows = {name: {"losses": window.losses, "count": window.count} for name, window in self.windows.items()}
        return {"skipped": self.skipped, "left_out": self.left_out, "windows": windows}

    def judge(self, optimizer: Any, loss_sum: tf.Tensor, weight: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
        """Judges an update, in replica context; all arguments but the first are the same on all replicas.

        Args:
            optimizer: which of the task's optimizers makes it.
            loss_sum: the sum of the losses, float32 scalar.
            weight: the examples' weights, added up.
            norm: the global norm of the gradient; 0 if it is not finite, and that is nothing to worry about.

        Returns:
            [4] float32: 1 if it is not sound, else 0; the loss, the norm, and the largest loss that is no spike.
        """
        sound, loss, limit = tf.math.is_finite(loss_sum + norm), tf.math.divide_no_nan(loss_sum, weight), tf.constant(math.inf)
        if self._config.spike_sigma is not None:
            window = self.windows[self._names[id(optimizer)]]
            limit = window.limit(self._config.spike_sigma)
            sound &= loss <= limit
            window.add(loss, sound & (weight > 0.0))
        return tf.stack([1.0 - tf.cast(sound, tf.float32), loss, norm, limit])

    def begin(self) -> Trouble:
        """Begins a compiled loop, outside the replicas."""
        return Trouble(self.skipped.read_value(), tf.constant(-1, tf.int64), tf.zeros([4]))

    def note(self, trouble: Trouble, step: tf.Tensor, finding: tf.Tensor) -> Trouble:
        """Notes what was found with a step.

        The loop goes on, though what comes after a step that ends its work is thrown away: a condition that waits for the step's
        numbers would keep TensorFlow from gathering the next batch meanwhile.
        """
        skipped, bad = trouble.skipped, finding[0] > 0.0
        ends = bad & (trouble.step < 0)
        if self.skips:
            ends &= skipped >= self._config.max_skips
            skipped += tf.cast(bad, tf.int64)
        return Trouble(skipped, tf.where(ends, step, trouble.step), tf.where(ends, finding, trouble.finding))

    def end(self, trouble: Trouble) -> None:
        """Ends a compiled loop, outside the replicas."""
        if self.skips:
            self.skipped.assign(trouble.skipped)

    def report(self) -> dict[str, float]:
        """Gives what the log should tell: how many updates were dropped in the whole run, if any."""
        skipped = int(self.skipped.numpy()) if self.skips else 0
        return {"updates_skipped": float(skipped)} if skipped else {}

    def describe(self, step: int, finding: Sequence[float]) -> str:
        """Says in one line what was found with a step."""
        _, loss, norm, limit = (float(number) for number in finding)
        if not math.isfinite(loss):
            return f"the loss became {loss} after {step} steps"
        if not math.isfinite(norm):
            return f"the norm of the gradient became {norm} after {step} steps"
        allowed = f"divergence.spike_sigma ({self._config.spike_sigma}) allows {limit:.6g}"
        return f"the loss jumped to {loss:.6g} after {step} steps, where {allowed}"

    def error(self, what: str) -> NonFiniteError:
        """Gives the error that ends the run; `what` was found."""
        most = "" if self._config.action == "stop" else f" when divergence.max_skips ({self._config.max_skips}) leaves no more room"
        return NonFiniteError(f"{what}{most}; {ADVICE}")

    def told(self, step: int, blocks: list[int]) -> str:
        """Tells which steps' samples a rollback leaves out, and how many blocks that makes."""
        first = self.first_left_out(step)
        steps = f"step {step}" if first == step else f"steps {first} to {step}"
        return f"{steps} ({len(blocks)} of at most {self._config.max_skips})"

    def first_left_out(self, step: int) -> int:
        """Gives the first of the steps whose samples a rollback leaves out, `step` being the offending one."""
        return max(0, step - self._config.leave_out + 1)

    def blocks(self) -> list[int]:
        """Gives the blocks that are left out, ascending."""
        return [int(block) for block in self.left_out.numpy() if block != _NOBODY]

    def blocks_without(self, step: int) -> list[int] | None:
        """Gives the blocks to be left out now that `step` offends, ascending; None: they are more than are allowed."""
        steps = tf.range(self.first_left_out(step), step + 1, dtype=tf.int64)
        blocks = sorted([*self.blocks(), *block_of(steps, self.left_out.read_value()).numpy().tolist()])
        return blocks if len(blocks) <= self._config.max_skips else None

    def leave_out(self, blocks: list[int]) -> None:
        """Leaves out these blocks, in the order of samples too when the input is opened again."""
        self.left_out.assign(blocks + [_NOBODY] * (MAX_SKIPS - len(blocks)))
