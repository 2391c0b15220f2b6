"""Retention: which checkpoints of a run are kept, and which are removed after a save."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trainer.config.directions import Directions
from trainer.config.instantiate import instantiate
from trainer.config.schema import Checkpoint
from trainer.errors import ConfigError


@dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint as retention sees it.

    Attributes:
        step: number of updates made.
        metrics: of the test split at that step; empty if it was not evaluated there.
    """

    step: int
    metrics: Mapping[str, float]


class RetentionPolicy(ABC):
    """One reason to keep a checkpoint; a checkpoint that no policy keeps is removed.

    `checkpoint.retention_policy` names a subclass of the user's own.

    Attributes:
        label: the reason as the command `checkpoints` prints it.
    """

    label: ClassVar[str] = "your policy"

    @abstractmethod
    def kept(self, checkpoints: Sequence[SavedCheckpoint]) -> set[int]:
        """Return the steps to keep.

        Args:
            checkpoints: all that are committed, ascending by step.
        """

    def ranked(self, checkpoints: Sequence[SavedCheckpoint]) -> list[int]:
        """Return the steps that a policy by quality keeps, the best first; others rank none."""
        return []


@dataclass(frozen=True)
class KeepNewest(RetentionPolicy):
    """Keeps the newest checkpoints.

    Attributes:
        count: how many, at least 1: without one a kill could leave the run without a checkpoint.
    """

    label: ClassVar[str] = "newest"
    count: int

    def kept(self, checkpoints: Sequence[SavedCheckpoint]) -> set[int]:
        return {checkpoint.step for checkpoint in checkpoints[-self.count :]}


@dataclass(frozen=True)
class KeepEveryNth(RetentionPolicy):
    """Keeps, for good, the checkpoints whose step is a multiple of `steps`."""

    label: ClassVar[str] = "every n-th"
    steps: int

    def kept(self, checkpoints: Sequence[SavedCheckpoint]) -> set[int]:
        return {checkpoint.step for checkpoint in checkpoints if checkpoint.step % self.steps == 0}


@dataclass(frozen=True)
class KeepBest(RetentionPolicy):
    """Keeps the best checkpoints by a metric of the evaluations.

    Attributes:
        metric: its name.
        mode: whether larger (`max`) or smaller (`min`) is better.
        count: how many.
    """

    label: ClassVar[str] = "best"
    metric: str
    mode: str
    count: int

    def kept(self, checkpoints: Sequence[SavedCheckpoint]) -> set[int]:
        return set(self.ranked(checkpoints))

    def ranked(self, checkpoints: Sequence[SavedCheckpoint]) -> list[int]:
        """Return the steps to keep, the best first.

        Of equal checkpoints the earlier is better. One whose metric is missing or NaN is left out.
        """
        sign = 1 if self.mode == "min" else -1
        scores = [
            (sign * value, checkpoint.step)
            for checkpoint in checkpoints
            if not math.isnan(value := checkpoint.metrics.get(self.metric, math.nan))
        ]
        return [step for _, step in sorted(scores)[: self.count]]


@dataclass(frozen=True)
class KeepAudited(RetentionPolicy):
    """Keeps the newest checkpoint from before the last clean audit, or from its step.

    Attributes:
        clean_step: returns the step of that audit.
    """

    label: ClassVar[str] = "audited"
    clean_step: Callable[[], int]

    def kept(self, checkpoints: Sequence[SavedCheckpoint]) -> set[int]:
        clean = self.clean_step()
        return set([saved.step for saved in checkpoints if saved.step <= clean][-1:])


def retention_policies(checkpoint: Checkpoint, directions: Directions) -> list[RetentionPolicy]:
    """Return the policies that the section `checkpoint` of a configuration asks for.

    Args:
        checkpoint: the section.
        directions: of the metrics; one that declares none ranks no checkpoints.

    Raises:
        ConfigError: the user's own is no policy.
    """
    policies: list[RetentionPolicy] = [KeepNewest(checkpoint.keep)]
    if checkpoint.keep_every_steps is not None:
        policies.append(KeepEveryNth(checkpoint.keep_every_steps))
    best = checkpoint.best
    if best.metric is not None and (mode := directions.mode(best.metric, best.mode)):
        policies.append(KeepBest(best.metric, mode, best.keep))
    if checkpoint.retention_policy is not None:
        own = instantiate(checkpoint.retention_policy, "checkpoint.retention_policy")
        if not isinstance(own, RetentionPolicy):
            raise ConfigError(
                f"checkpoint.retention_policy ({type(own).__name__}) must be a subclass of "
                "trainer.runs.checkpoint_retention.RetentionPolicy"
            )
        policies.append(own)
    return policies


def steps_to_remove(
    checkpoints: Sequence[SavedCheckpoint], policies: Sequence[RetentionPolicy]
) -> list[int]:
    """Return the steps that no policy keeps, ascending; none if there are no policies."""
    if not policies:
        return []
    kept = set().union(*(policy.kept(checkpoints) for policy in policies))
    return [checkpoint.step for checkpoint in checkpoints if checkpoint.step not in kept]
