"""mode=benchmark: it names the limit of two runs whose limits are known."""

import json

import pytest

from tests.support.command_line import run_here
from tests.support.processes import run

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


@pytest.mark.slow
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


REFUSED = {
    "parameter servers": (
        ["strategy=parameter_server"],
        "mode (benchmark) measures steps that all replicas make together, and "
        "strategy=parameter_server hands steps out to its workers; use another strategy",
    ),
    "divided replicas": (
        ["strategy=mirrored", "strategy.virtual_devices=2", "strategy.devices_per_replica=2"],
        "strategy.devices_per_replica (2) must be 1 for mode=benchmark, which compares with "
        "replicas of one device that exchange nothing",
    ),
    "fault": (
        ["fault=crash_at_40"],
        "mode (benchmark) is for runs without faults of their own; remove fault.crash_at_40",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
def test_unmeasurable_configuration_is_refused(tmp_path, monkeypatch, overrides, message):
    monkeypatch.chdir(tmp_path)
    outcome = run_here("mode=benchmark", *overrides)
    assert (outcome.code, outcome.err) == (2, f"error: {message}\n")
    assert not list(tmp_path.iterdir())
