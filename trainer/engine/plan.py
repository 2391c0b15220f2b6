"""The plan of a run: at which steps it evaluates, saves and reports, as pure functions of the step.

An epoch is a reporting interval; the order of the data does not depend on it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

from trainer.config.instantiate import instantiate
from trainer.config.schema import Checkpoint, Experiment, Pause, Summary, Train
from trainer.errors import ConfigError

_REPORTS = 100
"""How often `summary.every_steps=auto` reports in a run, at least."""
_MOST_STEPS = 50
"""The most steps that it leaves between two reports."""


@dataclass(frozen=True)
class Epochs:
    """Maps epochs, counted from 0, to steps.

    A batch may straddle two passes over the data, so epoch k ends at the first step by which k + 1
    passes are complete: ceil((k + 1) * num_examples / global_size).

    Attributes:
        steps_per_epoch: length of an epoch in steps; None: one pass over the data.
    """

    num_examples: int
    global_size: int
    steps_per_epoch: int | None = None

    @property
    def length(self) -> float:
        """The length of an epoch in steps; not whole where steps straddle two passes."""
        return self.steps_per_epoch or self.num_examples / self.global_size

    def end(self, epoch: int) -> int:
        """Return the number of steps after which `epoch` is complete."""
        if self.steps_per_epoch is not None:
            return (epoch + 1) * self.steps_per_epoch
        return -(-(epoch + 1) * self.num_examples // self.global_size)

    def completed(self, step: int) -> int:
        """Return how many epochs are complete after `step` steps."""
        if self.steps_per_epoch is not None:
            return step // self.steps_per_epoch
        return step * self.global_size // self.num_examples

    def next_after(self, step: int) -> int:
        """Return the first step after `step` that completes an epoch."""
        return self.end(self.completed(step))

    def total_steps(self, train: Train) -> int:
        """Return the length of the whole training in steps."""
        if train.steps is not None:
            return train.steps
        assert train.epochs is not None, "config.check lets exactly one of the two be set"
        return self.end(train.epochs - 1)


class StepPolicy(Protocol):
    """Decides at which steps something is due: one class for each way to count.

    `checkpoint.save_policy` names one of the user's own, which is called with `Epochs`.
    """

    def next_after(self, step: int) -> int:
        """Return the first step after `step` at which it is due, the same in every process."""


@dataclass(frozen=True)
class EverySteps:
    """Due after each multiple of a number of steps."""

    steps: int

    def next_after(self, step: int) -> int:
        return (step // self.steps + 1) * self.steps


@dataclass(frozen=True)
class EveryEpochs:
    """Due at the step that completes a multiple of `count` epochs."""

    epochs: Epochs
    count: int

    def next_after(self, step: int) -> int:
        # The next multiple and not the next epoch: a batch larger than the dataset completes
        # several epochs in one step.
        multiple = (self.epochs.completed(step) // self.count + 1) * self.count
        return self.epochs.end(multiple - 1)


@dataclass(frozen=True)
class EveryExamples:
    """Due at the first step by which a multiple of `count` examples has been seen."""

    global_size: int
    count: int

    def next_after(self, step: int) -> int:
        multiple = step * self.global_size // self.count + 1
        return -(-multiple * self.count // self.global_size)


@dataclass(frozen=True)
class LastStep:
    """Due after the last step, and past it: a run may be resumed with fewer steps than it made."""

    total_steps: int

    def next_after(self, step: int) -> int:
        return max(self.total_steps, step + 1)


@dataclass(frozen=True)
class AtSteps:
    """Due after each of some steps."""

    steps: frozenset[int]

    def next_after(self, step: int) -> int:
        return min((x for x in self.steps if x > step), default=sys.maxsize)


def step_policies(
    epochs: Epochs, every_steps: int | None, every_epochs: int | None = None
) -> list[StepPolicy]:
    """Return the policies that keys of a configuration request; None: not counted so."""
    policies: list[StepPolicy] = []
    if every_steps is not None:
        policies.append(EverySteps(every_steps))
    if every_epochs is not None:
        policies.append(EveryEpochs(epochs, every_epochs))
    return policies


@dataclass(frozen=True)
class _OwnPolicy:
    """A policy of the user's own. Without the check a step that is past would never be saved."""

    policy: StepPolicy

    def next_after(self, step: int) -> int:
        due: Any = self.policy.next_after(step)
        if not isinstance(due, Integral) or due <= step:
            raise ConfigError(
                f"checkpoint.save_policy ({type(self.policy).__name__}): next_after({step}) must "
                f"return an integer > {step}, and returned {due!r}"
            )
        return int(due)


def save_policies(checkpoint: Checkpoint, epochs: Epochs) -> list[StepPolicy]:
    """Return the policies by which the section `checkpoint` of a configuration requests saves.

    Raises:
        ConfigError: the user's own refuses an option, or names no later step.
    """
    policies = step_policies(epochs, checkpoint.every_steps, checkpoint.every_epochs)
    if checkpoint.every_examples is not None:
        policies.append(EveryExamples(epochs.global_size, checkpoint.every_examples))
    if checkpoint.save_policy is not None:
        own = _OwnPolicy(instantiate(checkpoint.save_policy, "checkpoint.save_policy", epochs))
        own.next_after(0)  # refused at the start, not at the first save
        policies.append(own)
    return policies


def is_due(policies: Sequence[StepPolicy], step: int) -> bool:
    """Return whether one of the policies saves after `step` steps."""
    return step > 0 and any(policy.next_after(step - 1) == step for policy in policies)


@dataclass(frozen=True)
class Plan:
    """The steps at which something is due in a run, each as policies of which one suffices.

    Attributes:
        epochs: the reporting epochs.
        evaluate: when the split that selects is evaluated; empty: a sidecar process evaluates it.
        histograms: when histograms of weights and gradients are shown; may be empty.
        images: when input images are shown; may be empty.
        call_ends: at which other steps a graph call ends: a snapshot, a profile or a fault.
        pause_step: the step after which this command pauses; past the last one: it does not.
    """

    total_steps: int
    epochs: Epochs
    summarize: Sequence[StepPolicy]
    evaluate: Sequence[StepPolicy]
    save: Sequence[StepPolicy]
    histograms: Sequence[StepPolicy]
    images: Sequence[StepPolicy]
    call_ends: Sequence[StepPolicy]
    pause_step: int = sys.maxsize


def make_plan(
    experiment: Experiment,
    num_examples: int,
    global_size: int,
    boundaries: frozenset[int] = frozenset(),
    *,
    asynchronous: bool = False,
) -> Plan:
    """Return the plan of a run.

    Args:
        boundaries: further steps at which a graph call ends.
        asynchronous: whether workers wait for one another where something is due, and only there.
    """
    epochs = Epochs(num_examples, global_size, experiment.train.steps_per_epoch)
    total_steps = epochs.total_steps(experiment.train)
    last = LastStep(total_steps)
    evaluate, checkpoint, summary = experiment.evaluate, experiment.checkpoint, experiment.summary
    kept = checkpoint.memory_every_steps if checkpoint.memory != "never" else None

    def every(steps: int | None, num_epochs: int | None = None) -> list[StepPolicy]:
        return [*step_policies(epochs, steps, num_epochs), last]

    def shown(steps: int | None) -> list[StepPolicy]:
        return every(steps) if steps and experiment.trains else []

    evaluates = [] if evaluate.sidecar else every(evaluate.every_steps, evaluate.every_epochs)
    return Plan(
        total_steps=total_steps,
        epochs=epochs,
        summarize=every(_summary_steps(summary, total_steps, asynchronous), summary.every_epochs),
        evaluate=evaluates,
        save=[*save_policies(checkpoint, epochs), last],
        histograms=shown(summary.histograms),
        images=shown(summary.images),
        call_ends=[AtSteps(boundaries), *step_policies(epochs, kept)],
        pause_step=_pause_step(experiment.pause, epochs, evaluates),
    )


def _pause_step(pause: Pause, epochs: Epochs, evaluate: Sequence[StepPolicy]) -> int:
    """Return the step of the first evaluation from the one on that `pause` names."""
    first = pause.at_step
    if pause.at_epoch is not None:
        # Of the products of floats only: 0.1 epochs of 30 steps are not 3.0000000000000004 steps.
        first = max(1, math.ceil(round(pause.at_epoch * epochs.length, 6)))
    if first is None:
        return sys.maxsize
    return min((policy.next_after(first - 1) for policy in evaluate), default=sys.maxsize)


def _summary_steps(summary: Summary, total_steps: int, asynchronous: bool) -> int:
    """Return the steps between two reports of the training metrics.

    A report takes a few milliseconds, so `auto` costs the less the longer a run is. Between two
    reports asynchronous workers divide the steps into chunks: so few would leave most of them idle.
    """
    if isinstance(summary.every_steps, int):
        return summary.every_steps
    return _MOST_STEPS if asynchronous else min(_MOST_STEPS, max(1, total_steps // _REPORTS))
