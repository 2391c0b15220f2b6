"""Weights & Biases: offline in `<run>/wandb`, unless its environment variables change that."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import wandb

from trainer.files import read_text, write_atomically
from trainer.summaries.writers.jsonl import points
from trainer.summaries.writers.writer import Writer


class WandB(Writer):
    """Logs metrics as `train/loss` and `test/loss`, and the hyperparameters as the configuration.

    Offline, W&B keeps a run in the memory of its own process until the run ends, and a kill
    loses it. So each attempt starts with the points of metrics.jsonl, in a folder that replaces
    the earlier ones. Online, it starts with the points that the server lacks.
    """

    network = "WANDB_MODE"
    requires = ("wandb", "steadfast-trainer[wandb]")

    def __init__(self, run_dir: Path, position: int) -> None:
        id_file = run_dir / "wandb_run_id"
        if not id_file.exists():
            write_atomically(id_file, uuid.uuid4().hex)
        user_settings = wandb.setup().settings
        if user_settings.mode == "offline":
            for folder in run_dir.glob("wandb/offline-run-*"):
                shutil.rmtree(folder)
        self._run = wandb.init(
            project=user_settings.project or run_dir.name.rpartition("-")[0] or run_dir.name,
            id=read_text(id_file),
            name=run_dir.name,
            dir=str(run_dir.resolve()),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        # A row holds all metrics of a step, and W&B accepts no step before the last one.
        self._step = 0
        first = self._run.step
        self._row: dict[str, float] = {}
        for split, step, values in points(run_dir, position):
            if step >= first:
                self.scalars(split, step, values)

    def hyperparameters(self, values: Mapping[str, bool | int | float | str]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

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
