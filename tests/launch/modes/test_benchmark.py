"""mode=benchmark: its variants of a run, and the limit of two runs whose limits are known."""

import json
from dataclasses import replace

import pytest

from tests.support.processes import run
from trainer.cli.compose import compose
from trainer.engine.plan import Epochs, save_policies
from trainer.launch.modes.benchmark import BenchmarkRecord, Size
from trainer.launch.modes.benchmark_processes import Variants, counts
from trainer.launch.resolved_run import resolve

BENCHMARK = ["mode=benchmark", "benchmark.secs=0.5", "model=softmax", "batch.per_replica=4",
             "batch.global_size=null", "optimizer=sgd"]  # fmt: skip
SLOW_DATA = "dataset._target_=tests.support.toy_datasets.slow"
SLOW_LINK = ["strategy=multi_worker", "strategy._target_=tests.support.toy_strategies.SlowLink"]


def record_of(tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    # No run, no checkpoint: what the processes have written is gone.
    assert sorted(path.name for path in folder.iterdir()) == ["benchmark.json"]
    return json.loads((folder / "benchmark.json").read_text())


@pytest.mark.slow
def test_slow_dataset_is_named_as_the_limit(tmp_path):
    code, out, err = run(tmp_path, *BENCHMARK, SLOW_DATA)
    assert code == 0, out + err
    assert out.splitlines()[-1].startswith("Change first: input: steps wait for their data ")
    record = record_of(tmp_path)
    assert record["limit"]["name"] == "input"
    (size,) = record["sizes"]
    assert size["replicas"] == 1
    assert size["input_wait"] > 0.5
    assert size["exchange_secs"] is None


@pytest.mark.long
def test_slow_exchange_of_a_wide_softmax_is_named_as_the_limit(tmp_path):
    wide = ["dataset=synthetic", "dataset.num_classes=100", "dataset.num_examples=256"]
    code, out, err = run(tmp_path, *BENCHMARK, *wide, *SLOW_LINK)
    assert code == 0, out + err
    assert "communication: it takes" in out.splitlines()[-1]
    record = record_of(tmp_path)
    assert record["limit"]["name"] == "communication"
    one, two = record["sizes"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    size = 4 * 100 * (32 * 32 * 3 + 1)
    assert two["gradient_bytes"] == size
    assert one["exchange_secs"] is None
    assert two["exchange_secs"] >= 0.25
    assert two["efficiency"] < 0.75


@pytest.mark.slow
def test_problem_that_a_process_finds_is_one_line_and_leaves_nothing(tmp_path):
    code, out, err = run(tmp_path, "mode=benchmark", "model=tutorial_cnn")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: model: tutorial_cnn takes images of 28 x 28 x 1")
    assert not list(tmp_path.iterdir())


TWO = Size(
    count=2,
    replicas=2,
    step_secs=0.010,
    examples_per_sec=12800.0,
    alone_step_secs=0.008,
    exchange_secs=0.0005,
    input_wait=0.1,
    processor_secs=0.009,
    gradient_bytes=4000,
    network_bytes=4100.0,
)
ONE = replace(TWO, count=1, replicas=1, examples_per_sec=8000.0, exchange_secs=None)
RECORD = BenchmarkRecord("multi_worker", "processes", 64, 3.0, sizes=[ONE, TWO])


def limit(**changes):
    return replace(RECORD, sizes=[ONE, replace(TWO, **changes)]).limit


CASES = {
    "input": ({"input_wait": 0.6}, "input: steps wait for their data 60 % of the time"),
    "communication": (
        {"alone_step_secs": 0.004},
        "communication: it takes 60 % of a step of 2 processes",
    ),
    "neither": ({}, "nothing but the work itself: steps wait 20 % of the time"),
}


@pytest.mark.parametrize(("changes", "text"), CASES.values(), ids=CASES)
def test_limit_has_the_figure_that_says_so(changes, text):
    assert limit(**changes)["text"].startswith(text)


def test_content_has_what_follows_from_the_figures():
    content = RECORD.content()
    assert content["limit"] == RECORD.limit
    assert content["sizes"][1]["efficiency"] == 0.8
    assert content["sizes"][1]["speedup"] == 1.6


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


def test_variant_neither_evaluates_nor_saves_nor_writes(tmp_path):
    run = variants(
        tmp_path, "checkpoint.every_examples=1", "checkpoint.every_secs=auto", "writers=[jsonl]"
    ).together(1)
    assert run.evaluate.every_epochs is run.evaluate.every_steps is None
    assert save_policies(run.checkpoint, Epochs(1, 1)) == []
    assert run.checkpoint.every_secs is None
    assert run.writers == {}
    assert run.train.steps_per_epoch == run.train.steps
    assert run.runs_dir == str(tmp_path)
