"""Which checkpoints are kept after a save, and which one `checkpoint=latest|best|<step>` names."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainer.config.directions import Directions
from trainer.config.instantiate import instantiate
from trainer.config.schema import Checkpoint
from trainer.errors import ConfigError
from trainer.runs import recorded_metrics
from trainer.runs.checkpoint_marker import committed_steps, read_marker, verify
from trainer.text import did_you_mean


@dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint as retention sees it.

    Attributes:
        metrics: of the test split at that step; empty if it was not evaluated there.
    """

    step: int
    metrics: Mapping[str, float]


class RetentionPolicy(ABC):
    """One reason to keep a checkpoint; a checkpoint that no policy keeps is removed.

    `checkpoint.retention_policy` names a subclass of the user's own.
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
    """Keeps the best checkpoints by a metric of the evaluations."""

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
    """Keeps the newest checkpoint from before the last clean audit, or from its step."""

    label: ClassVar[str] = "audited"
    clean_step: Callable[[], int]

    def kept(self, checkpoints: Sequence[SavedCheckpoint]) -> set[int]:
        clean = self.clean_step()
        return set([saved.step for saved in checkpoints if saved.step <= clean][-1:])


def retention_policies(checkpoint: Checkpoint, directions: Directions) -> list[RetentionPolicy]:
    """Return the policies that the section `checkpoint` of a configuration requests.

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


def select_step(run_dir: Path, checkpoint: Checkpoint) -> int:
    """Return the step of the checkpoint to use.

    Raises:
        ConfigError: there is no such checkpoint, or it is damaged.
    """
    directory = run_dir / "checkpoints"
    steps = committed_steps(directory)
    if not steps:
        raise ConfigError(f"{run_dir} has no checkpoint yet; train it first")
    if checkpoint.use == "latest":
        return _newest(run_dir, steps)
    step = (
        _best(run_dir, steps, checkpoint.best.metric, checkpoint.best.mode)
        if checkpoint.use == "best"
        else int(checkpoint.use)
    )
    known_steps = ", ".join(map(str, steps))
    if step not in steps:
        raise ConfigError(
            f"checkpoint ({step}): {run_dir} has no checkpoint of this step; "
            f"there are {known_steps}"
        )
    if problem := verify(directory, step):
        raise ConfigError(
            f"checkpoint ({checkpoint.use}): that of step {step} is damaged: {problem}; "
            f"there are {known_steps}"
        )
    return step


def _newest(run_dir: Path, steps: list[int]) -> int:
    problems = []
    for step in reversed(steps):
        problem = verify(run_dir / "checkpoints", step)
        if problem is None:
            return step
        problems.append(f"step {step}: {problem}")
    raise ConfigError(
        f"no checkpoint of {run_dir} can be trusted ({'; '.join(problems)}); "
        "bring one back, or train on"
    )


def _best(run_dir: Path, steps: list[int], metric: str | None, mode: str) -> int:
    directory = run_dir / "checkpoints"
    checkpoints = [SavedCheckpoint(step, read_marker(directory, step)["metrics"]) for step in steps]
    names = sorted({name for checkpoint in checkpoints for name in checkpoint.metrics})
    if metric is None:
        example = names[0] if names else "accuracy"
        raise ConfigError(
            "checkpoint (best) needs a metric: this run keeps none; "
            f"add checkpoint.best.metric={example}"
        )
    directions = recorded_metrics.read_directions(run_dir)
    line = directions.problem("checkpoint.best.metric", metric, "checkpoint.best.mode=max", mode)
    if line and metric in names:
        raise ConfigError(line)
    ranked = KeepBest(metric, directions.mode(metric, mode) or "max", 1).ranked(checkpoints)
    if not ranked:
        hint = (
            f"they have {', '.join(names)}{did_you_mean(metric, names)}"
            if names
            else "add checkpoint=latest"
        )
        raise ConfigError(
            f"checkpoint (best): no checkpoint was saved with checkpoint.best.metric ({metric}); "
            f"{hint}"
        )
    return ranked[0]
