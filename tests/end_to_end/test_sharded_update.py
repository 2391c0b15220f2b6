"""Updates divided among the processes of a host: the bits of whole ones."""

import json

import pytest

from tests.support.processes import OPTIONS, final_variables, finished, log
from tests.support.training import assert_same_bits

TWO = ["strategy=multi_worker", "strategy.workers=2"]
SHARDED = [*TWO, "strategy.update=sharded"]
STEPS = ["train.steps=16", "checkpoint.every_steps=1"]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_killed_run_has_the_bits_of_one_device(optimizer):
    """Its checkpoints are written while slots change in the memory that they were read from."""
    together = [*OPTIONS, *STEPS, f"optimizer={optimizer}", "batch.shards=4", "train.clip_norm=0.5"]
    killed = "+fault.killed={action:kill,process:worker-1,phase:step,at:9}"
    one = finished(*together)
    parts = finished(*together, *SHARDED, killed, "checkpoint.async_write=true")
    assert_same_bits(final_variables(one), final_variables(parts))
    assert log(one) == log(parts)
    assert [checksums(x) for x in markers(parts)] == [checksums(x) for x in markers(one)]


def markers(run_dir):
    return sorted((run_dir / "checkpoints").glob("ckpt-*.json"))


def checksums(marker):
    return {name: x["crc32"] for name, x in json.loads(marker.read_text())["variables"].items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [*OPTIONS, "optimizer=adamw", "optimizer.groups={bias:{learning_rate:0.1x}}",
         "precision=mixed_float16", "divergence.action=skip"],
        ["model=softmax", "~model.l2", "model._target_=tests.support.keras3_models.conv_net",
         "dataset=digits", "optimizer=lamb"],
    ],
    ids=["groups-float16", "keras-3"],
)  # fmt: skip
def test_sharded_update_has_the_bits_of_the_replicated_one(options):
    whole = finished(*STEPS, *options, *TWO, "strategy.update=replicated")
    parts = finished(*STEPS, *options, *SHARDED)
    assert_same_bits(final_variables(whole), final_variables(parts))
    assert log(whole) == log(parts)
