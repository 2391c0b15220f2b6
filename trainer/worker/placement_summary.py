"""Writes how a model is divided between the devices of a replica, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from trainer.engine.graph.device_traffic import StepTraffic, idle_share, measure
from trainer.engine.graph.replica_devices import index_in
from trainer.logical_devices import groups_of
from trainer.runs import placement_record
from trainer.runs.placement_record import DeviceRecord, PlacementRecord
from trainer.worker.build_model import Learner
from trainer.worker.context import WorkerContext


def placement_writer(
    context: WorkerContext, tf_strategy: tf.distribute.Strategy, learner: Learner
) -> Callable[[tf.Graph], None]:
    """Return the function that is called with the graph of each step that has been traced.

    The chief writes; an earlier attempt's record is removed if replicas have but one device now.

    Args:
        context: this process.
        tf_strategy: TensorFlow's strategy.
        learner: what is trained.
    """
    groups = groups_of(tf_strategy)
    if not context.cluster.is_chief:
        return lambda graph: None
    if groups is None:
        placement_record.remove(context.run_dir)
        return lambda graph: None
    parameters = _parameters(tf_strategy, learner.task.models, groups.groups[0])
    sizes = learner.sizes
    micro_batches = sizes.accumulate * ((sizes.shards or sizes.num_replicas) // sizes.num_replicas)

    def write(graph: tf.Graph) -> None:
        traffic = measure(graph, groups.groups)
        devices = [
            DeviceRecord(
                name.removeprefix("/device:"),
                [path for path, device in learner.placement.items() if device == number],
                parameters[number],
                traffic.flops[number],
            )
            for number, name in enumerate(groups.groups[0])
        ]
        record = PlacementRecord(
            devices,
            sizes.num_replicas,
            micro_batches,
            traffic.within,
            traffic.between,
            idle_share(traffic.flops, micro_batches),
            idle_share(traffic.flops, micro_batches, overlap=False),
        )
        placement_record.write(context.run_dir, record)
        context.channel.line(_line(record, traffic))

    return write


def _parameters(
    tf_strategy: tf.distribute.Strategy,
    models: Mapping[str, tf.keras.Model],
    group: Sequence[str],
) -> list[int]:
    counts = [0] * len(group)
    for variable in (variable for model in models.values() for variable in model.variables):
        local = tf_strategy.experimental_local_results(variable)[0]
        counts[index_in(group, local.device) or 0] += local.shape.num_elements()
    return counts


def _line(record: PlacementRecord, traffic: StepTraffic) -> str:
    total = sum(record.bytes_within.values())
    more = f", and {traffic.unknown} tensors of unknown size" if traffic.unknown else ""
    return (
        f"Placement: {len(record.devices)} devices for each replica; {total:,} bytes between them "
        f"in a step{more}; idle {100 * record.idle_pipelined:.0f} % of the time (computed)"
    )
