"""Models of Keras 3 on parameter servers."""

import numpy as np
import pytest

from tests.support.processes import ROOT, final_variables, finished, only_run, succeed
from tests.support.training import LOW_PRECISION_ROUNDING, recipe

KERAS_3 = (
    "model=softmax", "~model.l2", "model._target_=tests.support.keras3_models.conv_net",
    "train.steps=8", "batch.global_size=16", "writers=[jsonl]", "checkpoint.every_steps=3",
    "restart.backoff_secs=0",
)  # fmt: skip

SUMS = (
    "model._target_=tests.support.keras3_models.summing", "optimizer=sgd",
    "optimizer.momentum=0", "optimizer.learning_rate=0.25", "train.steps=40",
    "checkpoint.every_steps=10",
)  # fmt: skip


@pytest.mark.slow
def test_parameter_servers_sum_every_gradient_and_update_once(tmp_path):
    """Of two workers, into a kernel in pieces; a server is killed, and its updates are repeated.

    All values are multiples of 2**-10 below 2**9, so no sum is rounded, whatever its order.
    """
    servers = (
        "strategy=parameter_server", "strategy.workers=2", "strategy.ps=2",
        "strategy.partitioner=fixed_shards", "checkpoint.memory=never",
        "+fault.kill={action:kill,process:ps-0,phase:step,at:25}",
    )  # fmt: skip
    out = succeed(tmp_path, *KERAS_3, *SUMS, *servers, PYTHONPATH=str(ROOT))
    assert "Continuing from the checkpoint of step 20." in out
    # In this process, which needs no start: the sums begin with zero, and draw nothing.
    alone = tmp_path / "one"
    here = recipe(alone, *KERAS_3, *SUMS)
    assert here.train(lambda: False)
    one, served = (
        {name: v for name, v in final_variables(run_dir).items() if name.startswith("models/")}
        for run_dir in (alone, only_run(tmp_path))
    )
    assert one.keys() == served.keys()
    seen, kernel = (next(v for name, v in one.items() if part in name) for part in ("seen", "kern"))
    assert seen == 40 * 16
    assert np.abs(kernel).max() > 10
    for name, value in one.items():
        assert served[name].tobytes() == value.tobytes(), name


def saved_weights(run_dir, step):
    state = final_variables(run_dir, step)
    names = sorted(name for name in state if name.startswith("models/"))
    return np.concatenate([state[name].ravel() for name in names])


@pytest.mark.slow
def test_parameter_servers_train_in_16_bits_and_pieces_what_xla_compiles():
    """Of a model without random draws, for XLA draws others; its frozen kernel is in pieces too."""
    chosen = (
        "model._target_=tests.support.keras3_models.lora", "checkpoint.keep=3", "optimizer=sgd",
        "optimizer.learning_rate=0.05",
    )  # fmt: skip
    served = (
        "strategy=parameter_server", "strategy.workers=1", "strategy.ps=2", "jit=true",
        "strategy.partitioner=min_size", "strategy.shard_bytes=64", "precision=mixed_float16",
    )  # fmt: skip
    run_dirs = [finished(*KERAS_3, *chosen, *options) for options in ((), served)]
    early, whole, pieces = (
        saved_weights(run_dirs[number], step) for number, step in ((0, 3), (0, 8), (1, 8))
    )
    distance = np.linalg.norm(pieces - whole)
    assert distance <= LOW_PRECISION_ROUNDING * np.linalg.norm(whole - early)
