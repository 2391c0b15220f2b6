"""Weights & Biases: offline, in `<run>/wandb`, unless its own environment variables say otherwise."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import wandb

from trainer.files import write_atomically
from trainer.hparams import hyperparameters
from trainer.schema import Experiment
from trainer.writers.base import Writer
from trainer.writers.jsonl import points


class WandB(Writer):
    """Metrics by the names `train/loss` and `test/loss`, and the hyperparameters as the run's configuration.

    Offline, what W&B was told is in the memory of its own process for as long as a run goes on, and lost with a kill. So each attempt
    begins with what metrics.jsonl has, in a folder that takes the place of those before. Online, with what the server lacks of it.

    Args:
        run_dir: the run directory.
        position: the number of updates already reported.
        experiment: the configuration.
    """

    def __init__(self, run_dir: Path, position: int, experiment: Experiment) -> None:
        known = run_dir / "wandb_run_id"
        if not known.exists():
            write_atomically(known, uuid.uuid4().hex)
        given = wandb.setup().settings
        if given.mode == "offline":
            for folder in run_dir.glob("wandb/offline-run-*"):
                shutil.rmtree(folder)
        self._run = wandb.init(
            project=given.project or run_dir.name.rpartition("-")[0] or run_dir.name,
            id=known.read_text(),
            name=run_dir.name,
            dir=str(run_dir.resolve()),
            config=hyperparameters(experiment),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        # A row holds all of a step, and W&B takes none of a step that it has passed.
        self._step, first = 0, self._run.step
        self._row: dict[str, float] = {}
        for split, step, values in points(run_dir, position):
            if step >= first:
                self.scalars(split, step, values)

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        if step != self._step:
            self.flush()
        self._step = step
        self._row |= {f"{split}/{name}": value for name, value in values.items()}

    def flush(self) -> None:
        if self._row:
            self._run.log(self._row, step=self._step, commit=True)
        self._row = {}

    def close(self) -> None:
        self.flush()
        self._run.finish()
        wandb.teardown()
