"""Audits a run: whether every replica still holds the same bits of every variable."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.cluster.messages import Channel
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.process_group import ProcessGroup
from trainer.errors import DivergedError

_LEAST_STEPS = 100
_SHARE = 0.01  # of the time that `auto` spends on audits
_NOT_COMPARED = "frames/"
"""Counts that each process receives at its own time."""

Digests = Mapping[str, str]
"""The digests of the variables of one replica, by name; the same names on all replicas."""


@dataclass(eq=False, repr=False)
class Auditor:
    """Compares the variables of all replicas after some of the steps; collective.

    Attributes:
        clean_step: the last step after which nothing was found, or that the run was restored at.
        every: steps between two audits; `auto`: as many as keep their cost at one percent.
    """

    every: int | str
    loop: TrainLoop
    process_group: ProcessGroup
    processes: Sequence[str]
    channel: Channel
    total_steps: int

    def __post_init__(self) -> None:
        self._every = None if self.every == "auto" else int(self.every)
        self._interval = self._every or _LEAST_STEPS
        count = len(self.process_group.local_devices)
        self._owners = [
            name if count == 1 else f"{name} (replica {i})"
            for name in self.processes
            for i in range(count)
        ]
        self._steps, self._secs = 0, 0.0
        self._found = False
        self._is_cost_told = False
        self.compiled = False
        self.begin(0)

    def begin(self, step: int) -> None:
        self.clean_step = step
        self._plan(step)

    def next_after(self, step: int) -> int:
        """Return the step after which the next audit is due; the last step always is."""
        return self._next_step

    def record(self, count: int, secs: float) -> None:
        """Note the duration of `count` steps, with which the cost is compared."""
        self._steps += count
        self._secs += secs

    def audit(self, step: int) -> str:
        """Audit the state after `step` steps; collective.

        Returns:
            A line that names the variable and the process that differ, if the state is to be rolled
            back to `clean_step`; empty if nothing does. The same in all processes.

        Raises:
            DivergedError: something differs, and rolling back is not allowed, or was in vain: the
                audit before has found something too.
        """
        began = time.monotonic()
        problem = find_difference(self.process_group, self._owners, self._digests())
        problem = problem and f"The audit after step {step} found that {problem}"
        if self.compiled and not problem:
            self._tune(time.monotonic() - began)
        self.compiled = True
        if problem and (self._found or not self.loop.state.divergence_monitor.rolls_back):
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
        self._next_step = begin + self._interval
        if step < self.total_steps:
            self._next_step = min(self._next_step, self.total_steps)
        self._steps, self._secs = 0, 0.0

    def _digests(self) -> list[Digests]:
        strategy = self.loop.strategy
        count = len(self.process_group.local_devices)
        digests: list[dict[str, str]] = [{} for _ in range(count)]
        for name, variable in self.loop.state.variables().items():
            local = strategy.experimental_local_results(variable)
            if len(local) == count and not name.startswith(_NOT_COMPARED):
                for own, copy in zip(digests, local, strict=True):
                    own[name] = hashlib.sha256(copy.numpy().tobytes()).hexdigest()[:16]
        return list(digests)

    def _tune(self, secs: float) -> None:
        """Choose the interval by the chief's clock, and report the cost once."""
        if not self._steps:
            return
        step_secs = self._secs / self._steps
        if self._every is None:
            interval = max(_LEAST_STEPS, math.ceil(secs / step_secs / _SHARE))
            (self._interval,) = self.process_group.broadcast_from_chief(interval)
        if not self._is_cost_told:
            share = secs / (self._interval * step_secs)
            self.channel.line(
                f"An audit takes {1000 * secs:.1f} ms; one every {self._interval:,} steps costs "
                f"{100 * share:.1f} % of the time."
            )
            self._is_cost_told = True


def find_difference(group: ProcessGroup, owners: Sequence[str], digests: Sequence[Digests]) -> str:
    """Return a line on the first variable that differs, and in whose copy, or ""; collective."""
    # Of each copy 40 bits, which a sum over processes and replicas leaves room for.
    hashes = (hashlib.sha256("".join(x.values()).encode()).hexdigest() for x in digests)
    rows = group.gather(*(int(x[:10], 16) for x in hashes))
    if len({number for row in rows for number in row}) == 1:
        return ""
    own = json.dumps(digests)
    copies = [
        copy
        for process in range(group.count)
        for copy in json.loads(group.broadcast_text(process, own))
    ]
    lines = []
    for name in copies[0]:
        values = [copy[name] for copy in copies]
        expected = Counter(values).most_common(1)[0][0]
        odd = [owner for owner, value in zip(owners, values, strict=True) if value != expected]
        if odd:
            reference = owners[values.index(expected)]
            lines.append(f"variable {name} of {', '.join(odd)} differs from that of {reference}")
    return lines[0] + (f"; so do {len(lines) - 1} more" if len(lines) > 1 else "")
