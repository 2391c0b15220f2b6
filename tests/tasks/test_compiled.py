"""Runs of each task that are compiled by XLA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import small_runs
from tests.support.marks import first_only
from trainer.cli.compose import compose

TEXTS = ["dataset.characters=2000", "dataset.length=8"]
BLOCK = ["model.width=8", "model.hidden=8", "model.heads=2", "model.layers=1"]
TASKS = {
    "classification": ["model=softmax"],
    "language_model": [
        "task=language_model", "model=transformer", "dataset=sentences", *TEXTS, *BLOCK,
    ],
    "regression": ["task=regression", "dataset=diabetes", "model=mlp", "model.hidden=[8]"],
    "multilabel": [
        "task=multilabel", "dataset=table", "dataset.label=[warm,dry]",
        "dataset.label_kind=multilabel", "model=mlp", "model.hidden=[8]",
    ],
    "segmentation": [
        "task=segmentation", "dataset=shapes", "dataset.num_examples=48", "dataset.num_test=20",
        "dataset.image_size=[16,16]", "model=unet", "model.width=2", "model.depth=1",
    ],
}  # fmt: skip
SMALL = [
    "batch.global_size=16", "train.steps=4", "evaluate.every_steps=4", "evaluate.every_epochs=null",
    "checkpoint.every_steps=2", "checkpoint.every_epochs=null", "restart.backoff_secs=0",
    "writers=[jsonl]",
]  # fmt: skip


def options(folder: Path, task: str) -> list[str]:
    """Return the overrides of a small run; write its table, if it has one."""
    if task != "multilabel":
        return [*TASKS[task], *SMALL]
    file = folder / "rows.csv"
    rows = np.random.default_rng(0).normal(size=(80, 2)).round(3)
    lines = [f"{a},{b},{int(a > 0)},{int(b > 0.3)}" for a, b in rows]
    file.write_text("\n".join(["a,b,warm,dry", *lines]))
    return [*TASKS[task], f"dataset.path={file}", *SMALL]


@pytest.mark.slow
@pytest.mark.parametrize("task", first_only(TASKS))
def test_compiled_run_has_the_loss_of_one_that_is_not(tmp_path: Path, task: str) -> None:
    overrides = options(tmp_path, task)
    if "dropout" in compose(overrides).model:
        overrides.append("model.dropout=0")  # XLA draws other numbers
    losses = []
    for jit in ("false", "true"):
        engine = small_runs.engine(tmp_path / jit, *overrides, f"jit={jit}")
        engine.train(lambda: False)
        losses.append(engine.evaluator.evaluate(lambda: False).metrics["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
