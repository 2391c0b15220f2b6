"""Optimizers on several workers: no update is lost."""

import threading

import numpy as np
import pytest
import tensorflow as tf

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
