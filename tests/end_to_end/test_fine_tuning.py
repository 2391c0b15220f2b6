"""Groups of weights and layers that are trained later, in real processes; a transfer."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import ROOT, only_run, run
from trainer.launch.modes.run_comparison import differences, read

TUNED = (
    "model._target_=tests.support.toy_models.blocks", "model.batch_norm=true",
    "model.synchronized=false", "train.steps=8", "batch.global_size=16", "writers=[jsonl]",
    "checkpoint.every_steps=3", "checkpoint.keep=9", "restart.backoff_secs=0",
    "optimizer.groups={head:{learning_rate:10x,clip_norm:0.1},bias:{beta_1:0.5}}",
    "optimizer.layer_decay=0.8", "train.ema_decay=0.9",
)  # fmt: skip
KILL = "+fault.kill={action:kill,process:worker-1,phase:step,at:5}"


def trained(directory, *overrides):
    directory.mkdir()
    code, out, err = run(directory, *overrides)
    assert code == 0, f"{out}\n{err}"
    return only_run(directory), out


@pytest.mark.long
def test_cluster_that_lost_a_worker_before_the_unfreezing_has_the_bits_of_one_device(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = (*TUNED, "train.unfreeze={stem:6}", "batch.shards=4")
    one, _ = trained(tmp_path / "one", *options)
    killed, _ = trained(tmp_path / "two", *options, "strategy=multi_worker", KILL)
    assert differences(read(one), read(killed)) == []
    assert [name for _, name in read(killed).kills] == ["kill (worker-1 at step 5)"]


@pytest.mark.slow
def test_parameter_servers_keep_the_bits_of_frozen_and_held_layers(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run_dir, _ = trained(
        tmp_path / "run", *TUNED, "train.freeze=[stem]", "train.unfreeze={body:8}",
        "strategy=parameter_server", "strategy.partitioner=fixed_shards", "strategy.ps=2",
    )  # fmt: skip
    first, last = (
        tf.train.load_checkpoint(str(run_dir / "checkpoints" / f"ckpt-{step}")) for step in (3, 8)
    )
    changed = {
        name
        for name in first.get_variable_to_shape_map()
        if name.startswith(("models/", "optimizers/"))
        and not np.array_equal(first.get_tensor(name), last.get_tensor(name))
    }
    # Kernel and bias of the head, two slots of each, and the count of updates.
    assert len(changed) == 7
