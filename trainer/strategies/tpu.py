"""TPU: a copy of the model on each core of a TPU, updated alike."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, ClassVar

from trainer.cluster import Cluster, tpu_configured
from trainer.errors import ConfigError
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf

_REACH_SECS = 10.0


class Tpu(Strategy):
    """Trains on a TPU, of this machine or in the network.

    Args:
        name: its name in Google Cloud, its address (grpc://...), or local; None: what the environment declares.
        zone: its zone, if it has a name in another zone than this machine's.
        project: its project, likewise.
    """

    cannot: ClassVar[frozenset[str]] = frozenset({"loss_scaling", "conditional_update"})
    input_outside: ClassVar[bool] = True

    def __init__(self, *, name: str | None = None, zone: str | None = None, project: str | None = None) -> None:
        self._name, self._zone, self._project = name, zone, project

    def check(self, cluster: Cluster) -> None:
        """Refuses a machine that knows of no TPU."""
        if not self._name and not tpu_configured():
            raise ConfigError(
                "strategy.name (null) must be set, for no TPU is declared here: neither TPU_NAME nor KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS "
                "is in the environment, and there is no /dev/accel* or /dev/vfio/*; add strategy.name=<name or grpc:// address>"
            )

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Connects to the TPU and creates the strategy."""
        import tensorflow as tf

        name = self._name or tpu_configured()
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=self._zone, project=self._project)
            _reach([address for tasks in resolver.cluster_spec().as_dict().values() for address in tasks])
            tf.config.experimental_connect_to_cluster(resolver)
            # Wipes the TPU's memory, so nothing may be there yet.
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
        except (ValueError, RuntimeError, OSError, tf.errors.NotFoundError) as error:
            raise ConfigError(f"strategy.name ({name}): there is no TPU that can be used: {str(error).splitlines()[0]}") from error


def _reach(addresses: list[str]) -> None:
    """Makes sure that somebody listens: TensorFlow waits for a TPU that is not there, in silence and without a limit."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), _REACH_SECS).close()
