"""Processes whose replicas have several devices, and what a divided run leaves behind."""

import json

import pytest

from tests.support.processes import final_variables, only_run, run
from tests.support.training import assert_same_bits
from trainer.cli.report import data, page
from trainer.runs import placement_record

SHORT = [
    "model.width=4", "batch.global_size=16", "batch.shards=2", "train.steps=4",
    "restart.max_restarts=0", "writers=[jsonl]",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_of_two_devices_have_the_bits_of_one_device(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert run(tmp_path / "one", *SHORT)[0] == 0
    divided = ["strategy=multi_worker", "strategy.devices_per_replica=2"]
    code, out, err = run(tmp_path / "two", *SHORT, *divided)
    assert code == 0, out + err
    assert "Number of devices: 4\n" in out
    one, two = (only_run(tmp_path / name) for name in ("one", "two"))
    assert_same_bits(final_variables(one), final_variables(two))
    record = placement_record.read(two)
    assert record.num_replicas == 2
    assert [device.name for device in record.devices] == ["CPU:0", "CPU:1"]
    assert all(device.parameters for device in record.devices)
    # What was divided is a run like any other, and is used on one device.
    for mode in ("evaluate", "export"):
        code, out, err = run(tmp_path, f"mode={mode}", f"resume={two}")
        assert code == 0, out + err


def test_report_shows_how_a_model_is_divided(tmp_path):
    devices = [
        placement_record.DeviceRecord(
            f"CPU:{number}", [f"layer<{number}>"], 1000, {"forward": 3, "backward": 6, "update": 1}
        )
        for number in range(2)
    ]
    written = placement_record.PlacementRecord(
        devices, 2, 4, {"forward": 2048, "backward": 1024, "update": 40}, 99, 0.2, 0.5
    )
    placement_record.write(tmp_path, written)
    record = data.read(tmp_path, "a-1")
    assert record.placement == written
    text = page.render([record])
    assert "Model parallelism" in text
    for part in (
        "3,112 (2,048 forward", "Bytes between replicas of a process: 99", "20 % with 4 parts",
        "50 % without overlap", "layer&lt;1&gt;", "Huang et al. 2019",
    ):  # fmt: skip
        assert part in text


def test_damaged_record_is_noted_in_the_report(tmp_path):
    (tmp_path / "placement.json").write_text(json.dumps({"devices": 1}))
    record = data.read(tmp_path, "a-1")
    assert record.placement is None
    assert any("placement.json cannot be read" in problem for problem in record.problems)
