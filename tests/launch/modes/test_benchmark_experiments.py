"""The variants of an experiment that mode=benchmark measures."""

import pytest

from trainer.cli.compose import compose
from trainer.launch.modes.benchmark_experiments import Variants, counts
from trainer.launch.resolved_run import resolve


def variants(tmp_path, *overrides):
    experiment = compose(["mode=benchmark", *overrides])
    return Variants(experiment, resolve(experiment).strategy, tmp_path)


def test_all_sizes_are_measured_up_to_four_then_powers_of_two():
    assert counts(1) == [1]
    assert counts(4) == [1, 2, 3, 4]
    assert counts(6) == [1, 2, 4, 6]
    assert counts(8) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["strategy=multi_worker", "strategy.workers=3"], "workers"),
        (["strategy=mirrored", "strategy.virtual_devices=3"], "virtual_devices"),
        (["strategy=central_storage", "strategy.virtual_devices=3"], "virtual_devices"),
    ],
)
def test_each_replica_has_the_same_batch_at_every_size(tmp_path, overrides, key):
    made = variants(tmp_path, *overrides, "batch.global_size=48", "batch.shards=6")
    assert made.counts() == [1, 2, 3]
    for count in made.counts():
        run = made.together(count)
        resolve(run)
        assert run.strategy[key] == count
        assert (run.batch.per_replica, run.batch.global_size) == (16, None)
        assert run.batch.shards == 2 * count
    alone = made.alone(1)
    resolve(alone)
    assert alone.strategy["_target_"].endswith("OneDevice")
    assert (alone.batch.per_replica, alone.batch.shards) == (16, 2)


def test_devices_are_the_first_that_are_configured(tmp_path):
    made = variants(tmp_path, "strategy=mirrored", "strategy.devices=[CPU:0,CPU:1]")
    assert made.together(1).strategy["devices"] == ["CPU:0"]
    assert made.together(2).strategy["devices"] == ["CPU:0", "CPU:1"]


def test_strategy_of_one_device_has_one_size(tmp_path):
    assert variants(tmp_path, "strategy=one_device").counts() == [1]


def test_variant_neither_evaluates_nor_saves_nor_writes(tmp_path):
    run = variants(tmp_path, "checkpoint.every_secs=1", "writers=[jsonl]").together(1)
    assert run.evaluate.every_epochs is run.evaluate.every_steps is None
    assert run.checkpoint.every_epochs is run.checkpoint.every_secs is None
    assert run.writers == {}
    assert run.train.steps_per_epoch == run.train.steps
    assert run.runs_dir == str(tmp_path)
