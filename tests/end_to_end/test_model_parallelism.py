"""Processes whose replicas have several devices, and what a divided run leaves behind."""

import json

import pytest

from tests.support.processes import final_variables, only_run, succeed
from tests.support.training import assert_same_bits

SHORT = [
    "model.width=4", "batch.global_size=16", "batch.shards=2", "train.steps=4",
    "restart.max_restarts=0", "writers=[jsonl]",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_of_two_devices_have_the_bits_of_one_device(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    succeed(tmp_path / "one", *SHORT)
    divided = ["strategy=multi_worker", "strategy.devices_per_replica=2"]
    out = succeed(tmp_path / "two", *SHORT, *divided)
    assert ", 2 processes x 2 CPUs -> " in out
    one, two = (only_run(tmp_path / name) for name in ("one", "two"))
    assert_same_bits(final_variables(one), final_variables(two))
    record = json.loads((two / "placement.json").read_text())
    assert list(record["layers"]) == ["CPU:0", "CPU:1"]
    assert all(record["layers"].values())
    assert record["bytes_within"] > 0
    # What was divided is a run like any other, and is used on one device.
    for mode in ("evaluate", "export"):
        succeed(tmp_path, f"mode={mode}", f"resume={two}")
