"""A loop of the user's own: what of the configuration goes with it."""

import pytest

from trainer.cli.compose import compose
from trainer.config import loading
from trainer.errors import ConfigError
from trainer.launch.run_context import resolve
from trainer.runs import identity

LOOP = ("loop._target_=tests.support.loops.call", "train.steps=8")


def test_groups_of_the_built_in_loop_are_left_out():
    experiment = compose([*LOOP])
    assert experiment.own_loop == "tests.support.loops.call"
    assert experiment.model is None
    assert experiment.callbacks == {}
    assert experiment.choices["dataset"] is None
    assert experiment.choices["loop"] == "built_in"
    assert identity.run_name(experiment).startswith("tests.support.loops.call-")
    assert loading.restore(loading.plain(experiment)) == experiment


def test_strategy_and_seed_name_the_run():
    names = {
        identity.run_name(compose([*LOOP, *more]))
        for more in ((), ("seed=1",), ("strategy=mirrored",), ("train.steps=9",))
    }
    assert len(names) == 4
    assert identity.run_name(compose([*LOOP, "checkpoint.every_steps=5"])) in names


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (["strategy=parameter_server"], "make steps of their own at their own time"),
        (["strategy=tpu", "strategy.name=local"], "distributed iterator"),
    ],
)
def test_strategy_that_cannot_is_refused_with_the_reason(strategy, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve(compose([*LOOP, *strategy]))
    assert len(caught.value.problems) == 1


def test_cluster_that_changes_its_size_is_refused():
    with pytest.raises(ConfigError, match=r"launch.ray.min_workers .1. cannot be used with loop"):
        resolve(compose([*LOOP, "strategy=multi_worker", "launch=ray", "launch.ray.min_workers=1"]))


def test_replicas_need_not_divide_the_unused_batch():
    strategy, _ = resolve(compose([*LOOP, "strategy=mirrored", "strategy.virtual_devices=3"]))
    assert strategy.num_replicas() == 3


def test_continued_loop_keeps_its_strategy(tmp_path):
    before = identity.leaves(compose([*LOOP, "strategy=mirrored", "strategy.virtual_devices=2"]))
    experiment = compose([*LOOP, "strategy=multi_worker"])
    changes = identity.changes(before, identity.leaves(experiment))
    (line,) = identity.change_problems(tmp_path, changes, experiment)
    assert "was trained with another strategy, and a run of loop" in line
    longer = identity.changes(before, {**before, "train.steps": 20})
    assert identity.change_problems(tmp_path, longer, experiment) == []
