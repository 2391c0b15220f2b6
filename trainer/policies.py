"""When things happen: pure functions of the step. An epoch is a reporting interval; the data's order does not depend on it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.schema import Checkpoint, Experiment, Train


@dataclass(frozen=True)
class Epochs:
    """Maps epochs, counted from 0, to steps.

    A batch may straddle two passes over the data, so the boundary of epoch k is the first step by which k + 1 passes are
    complete: ceil((k + 1) * num_examples / global_size).

    Attributes:
        num_examples: examples in one pass.
        global_size: examples in one step.
        steps_per_epoch: a fixed length in steps instead of one pass over the data; None: one pass.
    """

    num_examples: int
    global_size: int
    steps_per_epoch: int | None = None

    def end(self, epoch: int) -> int:
        """Gives the number of steps after which `epoch` is complete."""
        if self.steps_per_epoch is not None:
            return (epoch + 1) * self.steps_per_epoch
        return -(-(epoch + 1) * self.num_examples // self.global_size)

    def completed(self, step: int) -> int:
        """Gives how many epochs are complete after `step` steps."""
        if self.steps_per_epoch is not None:
            return step // self.steps_per_epoch
        return step * self.global_size // self.num_examples

    def ends_at(self, step: int) -> bool:
        """Says whether an epoch is complete after exactly `step` steps."""
        completed = self.completed(step)
        return completed > 0 and self.end(completed - 1) == step

    def total_steps(self, train: Train) -> int:
        """Gives the length of the whole training in steps."""
        if train.steps is not None:
            return train.steps
        assert train.epochs is not None, "config.check lets exactly one of the two be set"
        return self.end(train.epochs - 1)


@dataclass(frozen=True)
class Interval:
    """Every n steps, every m epochs, either or both. The last step is always due, so that nothing is left undone.

    Attributes:
        every_steps: due after each multiple of this; None: never on account of steps.
        every_epochs: due at the step that completes a multiple of this; None: never on account of epochs.
    """

    epochs: Epochs
    total_steps: int
    every_steps: int | None = None
    every_epochs: int | None = None

    def due(self, step: int) -> bool:
        """Says whether it is due after `step` steps."""
        # Past the end too: a run may be continued with a smaller length than it has reached.
        return step >= self.total_steps or (step > 0 and self.next_after(step - 1) == step)

    def next_after(self, step: int) -> int:
        """Gives the first step after `step` at which it is due."""
        candidates = [self.total_steps]
        if self.every_steps is not None:
            candidates.append((step // self.every_steps + 1) * self.every_steps)
        if self.every_epochs is not None:
            # The next multiple and not the next epoch: a batch larger than the dataset completes several epochs in one step.
            multiple = (self.epochs.completed(step) // self.every_epochs + 1) * self.every_epochs
            candidates.append(self.epochs.end(multiple - 1))
        return min(candidate for candidate in candidates if candidate > step)


class Elapsed:
    """Every so many seconds. The chief's clock decides; the others follow it.

    Args:
        secs: how many; None: never.
        clock: seconds, monotonic.
    """

    def __init__(self, secs: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._secs, self._clock, self._since = secs, clock, clock()

    def due(self) -> bool:
        """Says whether so many seconds have gone by since `restart`."""
        return self._secs is not None and self._clock() - self._since >= self._secs

    def restart(self) -> None:
        """Starts to count anew."""
        self._since = self._clock()


@dataclass(frozen=True)
class Plan:
    """When things happen in a run.

    Attributes:
        total_steps: length of the whole training.
        epochs: the reporting epochs.
        summarise: when training metrics are written.
        evaluate: when the test split is evaluated; None: not by those who train, but for the result.
        save: after which steps the state is saved.
        save_clock: also saves when the chief's clock says so.
        histograms: when histograms of weights and gradients are shown; None: never.
        images: when input images are shown; likewise.
        stops: steps at which a call ends for another reason, and nothing is due.
    """

    total_steps: int
    epochs: Epochs
    summarise: Interval
    evaluate: Interval | None
    save: Interval
    save_clock: Elapsed
    histograms: Interval | None = None
    images: Interval | None = None
    stops: frozenset[int] = frozenset()

    def next_event(self, step: int) -> int:
        """Gives the first step after `step` at which something is due."""
        epoch_end = self.epochs.end(self.epochs.completed(step))
        stops = [stop for stop in self.stops if stop > step]
        return min(epoch_end, *(interval.next_after(step) for interval in self._intervals), *stops)

    def event_at(self, step: int) -> bool:
        """Says whether anything is due after `step` steps."""
        return self.epochs.ends_at(step) or any(interval.due(step) for interval in self._intervals)

    @property
    def _intervals(self) -> list[Interval]:
        intervals = (self.summarise, self.evaluate, self.save, self.histograms, self.images)
        return [interval for interval in intervals if interval is not None]


@dataclass(frozen=True)
class Saved:
    """What retention knows of a committed checkpoint: its step, and the metrics of the test split, if it was evaluated there."""

    step: int
    metrics: Mapping[str, float]


class Keep(Protocol):
    """One reason to keep a checkpoint. What no policy keeps is removed."""

    def kept(self, saved: Sequence[Saved]) -> set[int]:
        """Gives the steps that stay, of all that are committed, ascending by step."""


@dataclass(frozen=True)
class Newest:
    """Keeps the newest `count`, at least 1. What has no marker does not count, else a kill could leave none."""

    count: int

    def kept(self, saved: Sequence[Saved]) -> set[int]:
        return {one.step for one in saved[-self.count :]}


@dataclass(frozen=True)
class EveryNth:
    """Keeps those whose step is a multiple of `steps`, for good."""

    steps: int

    def kept(self, saved: Sequence[Saved]) -> set[int]:
        return {one.step for one in saved if one.step % self.steps == 0}


@dataclass(frozen=True)
class Best:
    """Keeps the best `count` by a metric of the test split; `mode`: whether larger (max) or smaller (min) is better."""

    metric: str
    mode: str
    count: int

    def kept(self, saved: Sequence[Saved]) -> set[int]:
        return set(self.ranked(saved))

    def ranked(self, saved: Sequence[Saved]) -> list[int]:
        """Gives the steps of the best, the best first; of equals the earlier. What is not a number is neither better nor worse."""
        sign = 1 if self.mode == "min" else -1
        scored = [(sign * value, one.step) for one in saved if not math.isnan(value := one.metrics.get(self.metric, math.nan))]
        return [step for _, step in sorted(scored)[: self.count]]


def keep_policies(checkpoint: Checkpoint) -> list[Keep]:
    """Gives what a configuration keeps."""
    found: list[Keep] = [Newest(checkpoint.keep)]
    if checkpoint.keep_every_steps is not None:
        found.append(EveryNth(checkpoint.keep_every_steps))
    if checkpoint.best.metric is not None:
        found.append(Best(checkpoint.best.metric, checkpoint.best.mode, checkpoint.best.keep))
    return found


def to_remove(saved: Sequence[Saved], policies: Sequence[Keep]) -> list[int]:
    """Gives the steps that no policy keeps, ascending; none without policies."""
    kept = set().union(*(policy.kept(saved) for policy in policies))
    return [one.step for one in saved if one.step not in kept] if policies else []


def plan_of(experiment: Experiment, num_examples: int, global_size: int, stops: frozenset[int] = frozenset()) -> Plan:
    """Gives when things happen in a run.

    Args:
        experiment: its configuration.
        num_examples: examples in one pass over the data.
        global_size: examples in one step.
        stops: as in `Plan`.
    """

    def every(steps: int | None) -> Interval | None:
        return Interval(epochs, total, steps) if steps and experiment.mode == "train" else None

    epochs = Epochs(num_examples, global_size, experiment.train.steps_per_epoch)
    total = epochs.total_steps(experiment.train)
    evaluate, save, summary = experiment.evaluate, experiment.checkpoint, experiment.summary
    return Plan(
        total_steps=total,
        epochs=epochs,
        summarise=Interval(epochs, total, summary.every_steps),
        evaluate=None if evaluate.sidecar else Interval(epochs, total, evaluate.every_steps, evaluate.every_epochs),
        save=Interval(epochs, total, save.every_steps, save.every_epochs),
        save_clock=Elapsed(save.every_secs),
        histograms=every(summary.histograms),
        images=every(summary.images),
        stops=stops,
    )
