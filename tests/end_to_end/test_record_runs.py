"""Runs on TFRecord files, as `convert` writes them."""

import pytest

from tests.support.processes import final_variables, only_run, run
from tests.support.training import assert_same_bits


@pytest.mark.long
def test_killed_workers_continue_to_the_bits_of_one_device_with_the_source(tmp_path):
    code, out, err = run(
        tmp_path, "convert", "dataset=digits", "to=tfrecord", "out=data", "shard_mb=0.05"
    )
    assert code == 0, err
    assert "verified test-00000-of-00001.tfrecord, file 5 of 5\n" in out
    assert out.endswith("Read it with: dataset=tfrecord dataset.path=data\n")
    assert err == ""
    common = [
        "model=softmax", "batch.global_size=48", "batch.shards=2", "train.steps=9",
        "checkpoint.every_steps=3", "writers=[jsonl]",
    ]  # fmt: skip
    code, out, err = run(
        tmp_path, *common, "dataset=tfrecord", "dataset.path=data",
        "strategy=multi_worker", "strategy.workers=2", "restart.backoff_secs=0",
        "+fault.kill={action:kill,process:worker-1,at:5}",
    )  # fmt: skip
    assert code == 0, out + err
    assert "Continuing from the checkpoint of step 3." in out
    (tmp_path / "source").mkdir()
    code, out, err = run(tmp_path / "source", *common, "dataset=digits")
    assert code == 0, out + err
    runs = [final_variables(only_run(folder)) for folder in (tmp_path, tmp_path / "source")]
    assert_same_bits(*runs)
