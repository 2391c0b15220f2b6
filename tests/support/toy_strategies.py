"""User-defined strategies."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from trainer.cluster.spec import Cluster
from trainer.strategies import devices
from trainer.strategies.multi_worker import MultiWorker


class TwoDevices(MultiWorker):
    """Several workers with two devices each, as if the halves of their CPU were GPUs."""

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Create the strategy; TensorFlow itself would use one CPU device of a worker."""
        devices.split_cpu(2)
        CollectiveAllReduceExtended._initialize_local_devices = lambda self, resolver, worker: (
            tuple(f"{worker}/device:CPU:{number}" for number in range(2)),
            "CPU",
        )
        return super().create(cluster)
