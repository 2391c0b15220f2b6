"""Which checkpoint of a run is meant by `checkpoint=latest|best|<step>`, for the modes that use one. No TensorFlow."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError
from trainer.markers import committed, marker, verify
from trainer.policies import Best, Saved
from trainer.rules import did_you_mean
from trainer.schema import Checkpoint


def step_of(run_dir: Path, checkpoint: Checkpoint) -> int:
    """Gives the step of the checkpoint that is meant.

    Args:
        run_dir: the run directory.
        checkpoint: what the command says of checkpoints; `latest` is the newest one that verifies.

    Raises:
        ConfigError: there is none such, or it is damaged.
    """
    directory = run_dir / "checkpoints"
    steps = committed(directory)
    if not steps:
        raise ConfigError(f"{run_dir} has no checkpoint yet; train it first")
    if checkpoint.use == "latest":
        return _newest(run_dir, steps)
    step = _best(directory, steps, checkpoint.best.metric, checkpoint.best.mode) if checkpoint.use == "best" else int(checkpoint.use)
    if step not in steps:
        raise ConfigError(f"checkpoint ({step}): {run_dir} has no checkpoint of this step; there are {_listed(steps)}")
    if problem := verify(directory, step):
        raise ConfigError(f"checkpoint ({checkpoint.use}): that of step {step} is damaged: {problem}; there are {_listed(steps)}")
    return step


def _newest(run_dir: Path, steps: list[int]) -> int:
    problems = []
    for step in reversed(steps):
        problem = verify(run_dir / "checkpoints", step)
        if problem is None:
            return step
        problems.append(f"step {step}: {problem}")
    raise ConfigError(f"no checkpoint of {run_dir} can be trusted ({'; '.join(problems)}); bring one back, or train on")


def _best(directory: Path, steps: list[int], metric: str | None, mode: str) -> int:
    saved = [Saved(step, marker(directory, step)["metrics"]) for step in steps]
    known = sorted({name for one in saved for name in one.metrics})
    if metric is None:
        example = known[0] if known else "accuracy"
        raise ConfigError(f"checkpoint (best) needs to know by what: this run keeps none; add checkpoint.best.metric={example}")
    ranked = Best(metric, mode, 1).ranked(saved)
    if not ranked:
        there = f"they have {', '.join(known)}{did_you_mean(metric, known)}" if known else "add checkpoint=latest"
        raise ConfigError(f"checkpoint (best): no checkpoint was saved with checkpoint.best.metric ({metric}); {there}")
    return ranked[0]


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))
