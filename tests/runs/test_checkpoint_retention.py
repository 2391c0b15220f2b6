"""Which checkpoints retention keeps."""

import pytest

from trainer.config.directions import Directions
from trainer.config.schema import Best, Checkpoint
from trainer.errors import ConfigError
from trainer.runs.checkpoint_retention import (
    KeepAudited,
    KeepBest,
    KeepEveryNth,
    KeepNewest,
    SavedCheckpoint,
    retention_policies,
    steps_to_remove,
)


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


def test_object_that_is_no_retention_policy_is_refused():
    own = {"_target_": "types.SimpleNamespace"}
    with pytest.raises(ConfigError, match=r"\(SimpleNamespace\) must be a subclass"):
        retention_policies(Checkpoint(retention_policy=own), Directions())
