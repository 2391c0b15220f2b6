"""Audits a run: whether every replica still holds the same variables, and computes the same bits.

After a step all copies of every variable are compared. With shards, one shard of the next step is
computed by every replica, and what they got is compared too. Neither changes a variable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from trainer.cluster.messages import Channel
from trainer.engine.audit.copies import Copy, find_difference, owners
from trainer.engine.audit.recomputed_shard import RecomputedShard
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.process_group import ProcessGroup
from trainer.errors import DivergedError

_LEAST_STEPS = 100
_SHARE = 0.01  # of the time that `auto` spends on audits
_NOT_COMPARED = "frames/"
"""Counts that each process receives at its own time."""


class Auditor:
    """Compares what must be equal after some of the steps; collective.

    Attributes:
        next_step: the step after which the next audit is due; the last step always is.
        clean_step: the last step after which nothing was found, or that the run was restored at.
        compiled: whether there has been an audit, so that the next one needs no compilation.

    Args:
        every: steps between two audits; `auto`: as many as keep their cost at one percent.
        loop: the training loop.
        recomputed: computes a shard; None: only the variables are compared.
        process_group: the processes that are compared.
        processes: their names, in the same order.
        channel: takes the line that tells what an audit costs.
        total_steps: length of the whole training.
    """

    def __init__(
        self,
        every: int | str,
        loop: TrainLoop,
        recomputed: RecomputedShard | None,
        process_group: ProcessGroup,
        processes: Sequence[str],
        channel: Channel,
        total_steps: int,
    ) -> None:
        self._every = None if every == "auto" else int(every)
        self._interval = self._every or _LEAST_STEPS
        self._loop = loop
        self._recomputed = recomputed
        self._group = process_group
        self._channel = channel
        self._total_steps = total_steps
        self._owners = owners(processes, len(process_group.local_devices))
        self._steps, self._secs = 0, 0.0
        self._found = False
        self._is_cost_told = False
        self.compiled = False
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin at a restored step."""
        self.clean_step = step
        self._plan(step)

    def record(self, count: int, secs: float) -> None:
        """Note the duration of `count` steps, with which the cost is compared."""
        self._steps += count
        self._secs += secs

    def audit(self, step: int) -> str:
        """Audit the state after `step` steps; collective.

        Returns:
            A line that names what differs and where, if the state is to be rolled back to
            `clean_step`; empty if nothing does. The same in all processes.

        Raises:
            DivergedError: something differs, and rolling back is not allowed, or was in vain: the
                audit before has found something too.
        """
        began = time.monotonic()
        problem = ""
        if len(self._owners) > 1:
            problem = find_difference(self._group, self._owners, self._variables())
            problem = problem and f"The audit after step {step} found that {problem}"
        if not problem and self._recomputed is not None:
            problem = self._recompute(self._recomputed, step)
        if self.compiled and not problem:
            self._tune(time.monotonic() - began)
        self.compiled = True
        if problem and (self._found or not self._loop.state.divergence_monitor.rolls_back):
            raise DivergedError(
                f"{problem}; check memory and processor of that machine, and do not trust "
                f"checkpoints after step {self.clean_step}, the last clean audit"
            )
        self._found = bool(problem)
        if not problem:
            self.clean_step = step
        self._plan(step)
        return problem

    def _plan(self, step: int) -> None:
        begin = step if self._every is None else step // self._interval * self._interval
        self.next_step = begin + self._interval
        if step < self._total_steps:
            self.next_step = min(self.next_step, self._total_steps)
        self._steps, self._secs = 0, 0.0

    def _variables(self) -> list[Copy]:
        """Return the variables of each replica of this process that has its own copy."""
        strategy = self._loop.strategy
        count = len(self._group.local_devices)
        copies: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
        for name, variable in self._loop.state.variables().items():
            local = strategy.experimental_local_results(variable)
            if len(local) == count and not name.startswith(_NOT_COMPARED):
                for copy, own in zip(copies, local, strict=True):
                    copy[f"variable {name}"] = own.numpy()
        return list(copies)

    def _recompute(self, recomputed: RecomputedShard, step: int) -> str:
        copies = recomputed.compute(step)
        holders = self._owners
        if len(holders) == 1:  # nobody else: this process computes it twice
            copies += recomputed.compute(step)
            holders = [f"{holders[0]} ({which} time)" for which in ("first", "second")]
        problem = find_difference(self._group, holders, copies)
        return problem and (
            f"The audit after step {step} computed shard {recomputed.number(step)} of the next "
            f"step again and found that {problem}"
        )

    def _tune(self, secs: float) -> None:
        """Choose the interval by the chief's clock, and tell the cost once."""
        if not self._steps:
            return
        step_secs = self._secs / self._steps
        if self._every is None:
            interval = max(_LEAST_STEPS, math.ceil(secs / step_secs / _SHARE))
            (self._interval,) = self._group.broadcast_from_chief(interval)
        if not self._is_cost_told:
            share = secs / (self._interval * step_secs)
            self._channel.line(
                f"An audit takes {1000 * secs:.1f} ms; one every {self._interval:,} steps costs "
                f"{100 * share:.1f} % of the time."
            )
            self._is_cost_told = True
