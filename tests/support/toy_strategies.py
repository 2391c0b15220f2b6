"""A user's own strategies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from trainer.cluster.spec import Cluster
from trainer.engine.graph.exchange.collectives import flat_sum
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


class SlowLink(MultiWorker):
    """Several workers whose gradients take a quarter of a second on their way."""

    def gradient_exchange(self, *, in_tree: bool) -> Any:
        """Return an exchange that waits, then sums with one reduction of TensorFlow's."""

        def wait(first: np.ndarray) -> np.ndarray:
            time.sleep(0.25)
            return first

        def exchange(
            replica: tf.distribute.ReplicaContext,
            gradients: list[tf.Tensor],
            others: list[tf.Tensor],
        ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            if replica.num_replicas_in_sync == 1:
                return gradients, others
            late = tf.numpy_function(wait, gradients[:1], tf.float32)
            tensors = [tf.reshape(late, gradients[0].shape), *gradients[1:], *others]
            sums = flat_sum(replica, tensors)
            return sums[: len(gradients)], sums[len(gradients) :]

        return exchange
