"""TPU: a replica of the model on each core of a TPU, with equal updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from trainer.cluster.environment import tpu_configured
from trainer.cluster.ports import connect
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.strategies import compatibility
from trainer.strategies.strategy import Refusals, Strategy
from trainer.text import first_line

if TYPE_CHECKING:
    import tensorflow as tf

_CONNECT_SECS = 10.0


class Tpu(Strategy):
    """Trains on a TPU, of this machine or in the network.

    Args:
        name: its name in Google Cloud, its address (grpc://...), or local; None: what the
            environment declares.
        zone: the zone of a named TPU; None: this machine's.
        project: the project of a named TPU; None: this machine's.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "precision=mixed_float16": "replicas cannot leave an update out together there, as an "
        "overflow of float16 needs; add precision=mixed_bfloat16 or precision=float32",
        "divergence.action=skip": "replicas cannot leave an update out together there; "
        "add divergence.action=rollback",
        "eager": compatibility.NOT_EAGER,
        "batch.shards": "the order of its sums has not been tested on one; add batch.shards=null",
        "env": "a learner takes the actors' frames by Python calls within its loop, which a TPU's "
        "loop cannot make; choose mirrored or multi_worker",
    }
    static_shapes: ClassVar[bool] = True
    uses_gpus: ClassVar[bool] = False
    allows_standby: ClassVar[bool] = False
    input_outside: ClassVar[bool] = True
    refuses_loops: ClassVar[str | None] = (
        "its cores are fed by TensorFlow's distributed iterator, whose position cannot be restored"
    )

    def __init__(
        self, *, name: str | None = None, zone: str | None = None, project: str | None = None
    ) -> None:
        self._name = name
        self._zone = zone
        self._project = project

    def refused(self, experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
        faults = (experiment.fault or {}).values()
        if any(fault.kind == "slow" and fault.phase == "step" for fault in faults):
            yield (
                "fault",
                "what XLA compiles for a TPU cannot sleep; remove the action slow, or inject it "
                "with strategy=mirrored",
            )

    def check_devices(self) -> None:
        """Refuse a machine on which no TPU is declared."""
        if not self._name and not tpu_configured():
            raise ConfigError(
                "strategy.name (null) must be set, for no TPU is declared here: neither TPU_NAME "
                "nor KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS is in the environment, and there is no "
                "/dev/accel* or /dev/vfio/*; add strategy.name=<name or grpc:// address>"
            )

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        import tensorflow as tf

        name = self._name or tpu_configured()
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                tpu=name, zone=self._zone, project=self._project
            )
            for addresses in resolver.cluster_spec().as_dict().values():
                for address in addresses:  # TensorFlow waits for a missing TPU silently and forever
                    connect(address, _CONNECT_SECS)
            tf.config.experimental_connect_to_cluster(resolver)
            # This clears the TPU's memory, so nothing may be there yet.
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
        except (ValueError, RuntimeError, OSError, tf.errors.NotFoundError) as error:
            raise ConfigError(
                f"strategy.name ({name}): there is no TPU that can be used: {first_line(error)}"
            ) from error
