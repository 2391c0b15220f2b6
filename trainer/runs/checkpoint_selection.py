"""Selection of the checkpoint that `checkpoint=latest|best|<step>` names."""

from __future__ import annotations

from pathlib import Path

from trainer.config.options.constraints import did_you_mean
from trainer.config.schema import Checkpoint
from trainer.errors import ConfigError
from trainer.runs import recorded_metrics
from trainer.runs.checkpoint_marker import committed_steps, read_marker, verify
from trainer.runs.checkpoint_retention import KeepBest, SavedCheckpoint


def select_step(run_dir: Path, checkpoint: Checkpoint) -> int:
    """Return the step of the checkpoint to use.

    Args:
        run_dir: the run directory.
        checkpoint: the section of the configuration; `latest` is the newest valid checkpoint.

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
            "checkpoint (best) needs to know by what: this run keeps none; "
            f"add checkpoint.best.metric={example}"
        )
    directions = recorded_metrics.read_directions(run_dir)
    line = directions.problem("checkpoint.best.metric", metric, "checkpoint.best.mode", mode)
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
