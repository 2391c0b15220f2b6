"""Optimizers on several workers: no update is lost."""

import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import only_run, run
from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.optimizers.lion import lion
from trainer.strategies import compatibility, select

SHORT = ("model=softmax", "batch.global_size=16", "writers=[jsonl]")


def test_no_update_is_lost_where_workers_do_not_wait_for_each_other():
    """Each moves a weight by the learning rate, a power of two: their sum is exact."""
    variable = tf.Variable(tf.zeros([3, 2]))
    optimizer = lion(2.0**-10)
    optimizer._create_all_weights([variable])

    @tf.function
    def update():
        optimizer.apply_gradients([(tf.ones_like(variable), variable)])

    update()
    threads = [
        threading.Thread(target=lambda: [update() for _ in range(50)], daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(variable.numpy(), np.full((3, 2), -201 * 2.0**-10))
    assert int(optimizer.iterations) == 201


@pytest.mark.parametrize("optimizer", ["lars", "muon"])
def test_optimizers_of_whole_layers_exclude_partitioned_variables(optimizer):
    overrides = ["strategy=parameter_server", "strategy.partitioner=min_size"]
    experiment = compose([*overrides, f"optimizer={optimizer}"])
    strategy = select.select_strategy(experiment)
    with pytest.raises(ConfigError, match="an update depends on the whole layer") as caught:
        compatibility.check(experiment, strategy, Cluster())
    assert len(caught.value.problems) == 1


@pytest.mark.slow
def test_workers_of_parameter_servers_train_and_save_all_slots(tmp_path):
    chosen = ["optimizer=adafactor", "strategy=parameter_server"]
    code, out, err = run(tmp_path, *SHORT, "train.steps=4", *chosen)
    assert code == 0, out + err
    run_dir = only_run(tmp_path)
    assert json.loads((run_dir / "result.json").read_text())["step"] == 4
    saved = tf.train.load_checkpoint(str(run_dir / "checkpoints" / "ckpt-4"))
    slots = [name for name in saved.get_variable_to_shape_map() if "/slots/" in name]
    assert len(slots) == 3  # a row, a column, and the bias
    assert all(np.abs(saved.get_tensor(name)).max() > 0 for name in slots)
