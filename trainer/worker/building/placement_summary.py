"""Summary of how a model is divided between the devices of a replica, and what a step sends."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.engine.graph.placement.device_traffic import measure
from trainer.files import write_json
from trainer.logical_devices import groups_of
from trainer.worker.building.build_model import Learner
from trainer.worker.context import WorkerContext


def placement_writer(
    context: WorkerContext, tf_strategy: tf.distribute.Strategy, learner: Learner
) -> Callable[[tf.Graph], None]:
    """Return the function that is called with the graph of each step that has been traced.

    The chief writes placement.json: the layers of each device of the first replica, and the bytes
    that a step sends. An earlier attempt's is removed if replicas have but one device now.

    Args:
        context: this process.
        tf_strategy: TensorFlow's strategy.
        learner: what is trained.
    """
    groups = groups_of(tf_strategy)
    file = context.run_dir / "placement.json"
    if not context.cluster.is_chief:
        return lambda graph: None
    if groups is None:
        file.unlink(missing_ok=True)
        return lambda graph: None

    def write(graph: tf.Graph) -> None:
        traffic = measure(graph, groups.groups)
        layers = {
            name.removeprefix("/device:"): [
                path for path, device in learner.placement.items() if device == number
            ]
            for number, name in enumerate(groups.groups[0])
        }
        sent = {"bytes_within": traffic.within, "bytes_between": traffic.between}
        write_json(file, {"layers": layers, **sent})
        more = f", and {traffic.unknown} tensors of unknown size" if traffic.unknown else ""
        context.channel.line(
            f"Placement: {len(layers)} devices for each replica; "
            f"{sum(traffic.within.values()):,} bytes between them in a step{more}"
        )

    return write
