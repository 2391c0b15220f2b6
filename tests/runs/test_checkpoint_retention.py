"""Which checkpoints are kept, and which one `checkpoint=latest|best|<step>` selects."""

import json
import shutil

import pytest
import yaml

from trainer.cli.compose import compose
from trainer.config.directions import Directions
from trainer.config.schema import Best, Checkpoint
from trainer.errors import ConfigError
from trainer.runs.checkpoint_marker import commit
from trainer.runs.checkpoint_retention import (
    KeepAudited,
    KeepBest,
    KeepEveryNth,
    KeepNewest,
    SavedCheckpoint,
    retention_policies,
    select_step,
    steps_to_remove,
)

ACCURACY = {10: 0.5, 20: 0.9, 30: 0.7}


def saved(*steps, **accuracies):
    """Return checkpoints of these steps; `at_<step>` is the accuracy of one that was evaluated."""
    return [
        SavedCheckpoint(
            step, {"accuracy": accuracies[f"at_{step}"]} if f"at_{step}" in accuracies else {}
        )
        for step in steps
    ]


@pytest.mark.parametrize(
    ("steps", "policies", "removed"),
    [
        ([], [KeepNewest(2)], []),
        ([1, 2, 3], [KeepNewest(2)], [1]),
        ([1, 2, 3], [], []),
        ([1, 2, 3, 4, 5], [KeepNewest(1), KeepEveryNth(2)], [1, 3]),
        ([1, 2, 3, 4, 5], [KeepNewest(1), KeepAudited(lambda: 3)], [1, 2, 4]),
        ([2, 3], [KeepNewest(1), KeepAudited(lambda: 1)], [2]),
        ([1, 2, 3, 4], [KeepNewest(2), KeepBest("accuracy", "max", 1)], [2]),
        ([1, 2, 3, 4], [KeepNewest(2), KeepBest("accuracy", "min", 1)], [1]),
    ],
)
def test_steps_to_remove_are_those_that_no_policy_keeps(steps, policies, removed):
    assert steps_to_remove(saved(*steps, at_1=0.9, at_2=0.5, at_4=0.7), policies) == removed


@pytest.mark.parametrize(("count", "steps"), [(1, [2]), (2, [2, 3])])
def test_keep_best_prefers_the_earlier_of_equal_checkpoints(count, steps):
    checkpoints = saved(1, 2, 3, at_1=0.5, at_2=0.7, at_3=0.7)
    assert KeepBest("accuracy", "max", count).ranked(checkpoints) == steps


def test_retention_policies_follow_the_configuration():
    declared = Directions({"loss": "min", "rmse": "min", "r2": "max"})
    assert retention_policies(Checkpoint(), declared) == [KeepNewest(2)]
    chosen = Checkpoint(keep=3, keep_every_steps=100, best=Best(metric="rmse", keep=4))
    assert retention_policies(chosen, declared) == [
        KeepNewest(3),
        KeepEveryNth(100),
        KeepBest("rmse", "min", 4),
    ]
    overruled = Checkpoint(best=Best(metric="rmse", mode="max"))
    assert retention_policies(overruled, declared)[-1] == KeepBest("rmse", "max", 1)
    policy = {"_target_": "trainer.runs.checkpoint_retention.KeepEveryNth", "steps": 7}
    own = Checkpoint(retention_policy=policy)
    assert retention_policies(own, declared) == [KeepNewest(2), KeepEveryNth(7)]


@pytest.fixture
def run_dir(tmp_path):
    directory = tmp_path / "run" / "checkpoints"
    directory.mkdir(parents=True)
    for step, accuracy in ACCURACY.items():
        (directory / f"ckpt-{step}.index").write_text(f"index {step}")
        commit(directory, step, {"loss": 1 - accuracy, "accuracy": accuracy})
    task = {"_target_": "trainer.tasks.classification.Classification"}
    (directory.parent / "config.yaml").write_text(yaml.safe_dump({"task": task, "metrics": {}}))
    return directory.parent


def best(metric, mode="auto"):
    return Checkpoint(use="best", best=Best(metric=metric, mode=mode))


def problem(run_dir, checkpoint):
    with pytest.raises(ConfigError) as caught:
        select_step(run_dir, checkpoint)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0].replace(str(run_dir), "<run>")


def test_select_step_finds_latest_best_and_a_step(run_dir):
    assert select_step(run_dir, Checkpoint()) == 30
    assert select_step(run_dir, Checkpoint(use=10)) == 10
    assert select_step(run_dir, best("accuracy")) == 20
    assert select_step(run_dir, best("loss")) == 20
    assert select_step(run_dir, best("accuracy", "min")) == 10


def test_latest_is_the_newest_valid_checkpoint(run_dir):
    (run_dir / "checkpoints" / "ckpt-30.index").write_text("index 3O")
    assert select_step(run_dir, Checkpoint()) == 20
    assert "checkpoint (30): that of step 30 is damaged" in problem(run_dir, Checkpoint(use=30))
    for step in (10, 20):
        (run_dir / "checkpoints" / f"ckpt-{step}.index").unlink()
    assert problem(run_dir, Checkpoint()).startswith("no checkpoint of <run> can be trusted")


def test_select_step_reports_missing_checkpoints(run_dir):
    assert "there are 10, 20, 30" in problem(run_dir, Checkpoint(use=15))
    assert "add checkpoint.best.metric=accuracy" in problem(run_dir, best(None))
    assert "did you mean 'accuracy'?" in problem(run_dir, best("acuracy"))
    shutil.rmtree(run_dir / "checkpoints")
    assert problem(run_dir, Checkpoint()) == "<run> has no checkpoint yet; train it first"


def test_run_keeps_its_own_checkpoint_choice(run_dir):
    saved = ["checkpoint=every_50_steps", "checkpoint.best.metric=accuracy"]
    (run_dir / "run.json").write_text(json.dumps({"overrides": saved, "config_dir": None}))
    experiment = compose([f"resume={run_dir}", "mode=evaluate", "checkpoint=best"])
    options = experiment.checkpoint
    assert experiment.choices["checkpoint"] == "every_50_steps"
    assert (options.use, options.best.metric, options.keep) == ("best", "accuracy", 3)
    assert select_step(run_dir, options) == 20
