"""Runs of each task that are compiled by XLA."""

import pytest

from tests.end_to_end.test_matrix import FEATURES
from tests.support import small_runs
from tests.support.marks import first_only

TASKS = {
    "classification": ("model=softmax",),
    "regression": ("task=regression", "dataset=diabetes", "model=mlp", "model.hidden=[8]"),
    "language model": (*FEATURES["language model"], "model.dropout=0"),  # XLA draws other numbers
    "segmentation": FEATURES["segmentation"],
}


@pytest.mark.slow
@pytest.mark.parametrize("task", first_only(TASKS))
def test_compiled_run_has_the_loss_of_one_that_is_not(tmp_path, task):
    losses = []
    for jit in ("false", "true"):
        engine = small_runs.engine(tmp_path / jit, *TASKS[task], "train.steps=4", f"jit={jit}")
        engine.train(lambda: False)
        losses.append(engine.evaluator.evaluate(lambda: False).metrics["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
