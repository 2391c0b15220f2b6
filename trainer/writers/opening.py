"""From the names in `summary.writers` to writers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainer.channel import Channel
from trainer.schema import Experiment
from trainer.writers.background import Background
from trainer.writers.base import Writer
from trainer.writers.csv import Csv
from trainer.writers.jsonl import JsonLines
from trainer.writers.tensorboard import TensorBoard

_FILES = {"jsonl": JsonLines, "tensorboard": TensorBoard, "csv": Csv}


def open_writers(
    experiment: Experiment, run_dir: Path, position: int, channel: Channel, *, leave_out: tuple[str, ...] = ()
) -> list[Writer]:
    """Opens the configured writers at a position, the number of updates already reported.

    Args:
        experiment: the configuration.
        run_dir: the run directory.
        position: the number of updates already reported.
        channel: told of a tracker that the run goes on without.
        leave_out: writers that are not opened though they are configured.
    """
    names = experiment.summary.writers
    files = [name for name in names if name in _FILES]
    trackers = {name: maker for name, maker in _trackers(experiment, run_dir, position).items() if name in names}
    if trackers and "jsonl" not in files:
        files.append("jsonl")  # what they catch up from
    opened: list[Writer] = [Background(partial(_FILES[name], run_dir, position)) for name in files if name not in leave_out]
    return opened + [Background(maker, partial(_tell_lost, channel, name)) for name, maker in trackers.items()]


def _trackers(experiment: Experiment, run_dir: Path, position: int) -> dict[str, Callable[[], Writer]]:
    # Optional packages, slow to import: that is done in the writer's thread.
    def mlflow() -> Writer:
        from trainer.writers.mlflow import MLflow

        return MLflow(run_dir, position, experiment)

    def wandb() -> Writer:
        from trainer.writers.wandb import WandB

        return WandB(run_dir, position, experiment)

    return {"mlflow": mlflow, "wandb": wandb}


def _tell_lost(channel: Channel, name: str, why: str) -> None:
    channel.line(f"warning: {name} cannot be written to ({why}); the run goes on without it")
