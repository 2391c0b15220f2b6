"""Groups of weights and frozen layers, on parameter servers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import ROOT, only_run, run

TUNED = (
    "model._target_=tests.support.toy_models.blocks", "model.batch_norm=true",
    "model.synchronized=false", "train.steps=8", "batch.global_size=16", "writers=[jsonl]",
    "checkpoint.every_steps=3", "checkpoint.keep=9", "restart.backoff_secs=0",
    "optimizer.groups={head:{learning_rate:10x,clip_norm:0.1},bias:{beta_1:0.5}}",
    "optimizer.layer_decay=0.8", "train.ema_decay=0.9",
)  # fmt: skip


@pytest.mark.slow
def test_parameter_servers_keep_the_bits_of_frozen_layers(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code, out, err = run(
        tmp_path, *TUNED, "train.freeze=[stem,body]",
        "strategy=parameter_server", "strategy.partitioner=fixed_shards", "strategy.ps=2",
    )  # fmt: skip
    assert code == 0, f"{out}\n{err}"
    checkpoints = only_run(tmp_path) / "checkpoints"
    first, last = (tf.train.load_checkpoint(str(checkpoints / f"ckpt-{step}")) for step in (3, 8))
    changed = {
        name
        for name in first.get_variable_to_shape_map()
        if name.startswith(("models/", "optimizers/"))
        and not np.array_equal(first.get_tensor(name), last.get_tensor(name))
    }
    # Kernel and bias of the head, two slots of each, and the count of updates.
    assert len(changed) == 7
