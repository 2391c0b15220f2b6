"""What every task of the catalog does: it trains, evaluates, compiles, and continues from a save.

The tasks that learn from actors have tests of their own, in tests/reinforcement.
"""

import numpy as np
import pytest

from tests.end_to_end.test_matrix import FEATURES
from tests.support.choices import listed
from tests.support.training import assert_same_bits, short_engine, variables

TASKS = {
    "classification": ("model=softmax", "dataset=digits"),
    "gan": (
        "experiment=gan_digits", "task.generator.width=2", "task.generator.latent=4",
        "task.discriminator.width=2",
    ),
    "keras": FEATURES["compiled of keras"],
    "language_model": (*FEATURES["language model"], "model.dropout=0"),
    "multilabel": (
        "task=multilabel", "dataset=arrays", f"dataset.data._target_={__name__}.flags",
        "dataset.label_kind=multilabel", "model=mlp", "model.hidden=[8]",
    ),
    "regression": ("task=regression", "dataset=diabetes", "model=mlp", "model.hidden=[8]"),
    "segmentation": FEATURES["segmentation"],
    "sequence_classification": FEATURES["texts"],
}  # fmt: skip
COMPILED = ("classification", "regression", "language_model", "segmentation")


def flags():
    """Return training and test examples with three flags each."""
    x = np.random.default_rng(0).normal(size=(64, 4))
    return ((x, (x[:, :3] > 0).astype(int)),) * 2


def engine(run_dir, task, *overrides):
    return short_engine(run_dir, *TASKS[task], "train.steps=2", *overrides)


def test_every_task_has_a_case():
    assert {*TASKS, "impala", "d4pg"} == {*listed("task").split(", ")}


@pytest.mark.parametrize(
    "task", [pytest.param(x, marks=[pytest.mark.slow] * (x != "multilabel")) for x in TASKS]
)
def test_task_trains_evaluates_and_is_restored_to_the_bit(tmp_path, task):
    run = engine(tmp_path, task)
    before = variables(run)
    assert run.train(lambda: False)
    after = variables(run)
    for name, model in run.state.task.models.items():
        trained = {id(variable) for variable in model.trainable_variables}
        for number, variable in enumerate(model.variables):
            path = f"/models/{name}/{number}"
            # What a GAN's loss adds to the score and takes away again does not move its bias.
            is_moved = id(variable) in trained and not (task == "gan" and "bias" in variable.name)
            assert not is_moved or np.any(before[path] != after[path]), variable.name
    assert {*run.state.task.metrics} <= run.result()["metrics"].keys()
    assert np.isfinite(run.result()["metrics"]["loss"])
    again = engine(tmp_path, task)
    assert again.checkpointer.restore_latest() == 2
    assert_same_bits(variables(again), after)


@pytest.mark.parametrize(
    "task", [pytest.param(x, marks=pytest.mark.long if n else pytest.mark.slow)
             for n, x in enumerate(COMPILED)]
)  # fmt: skip
def test_compiled_run_has_the_loss_of_one_that_is_not(tmp_path, task):
    losses = []
    for jit in ("false", "true"):
        run = engine(tmp_path / jit, task, "train.steps=4", f"jit={jit}")
        run.train(lambda: False)
        losses.append(run.evaluator.evaluate(lambda: False).metrics["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
