"""The sizes of an experiment's models: `python -m trainer.worker.model_sizes`, for mode=plan.

It reads JSON, `experiment` and `num_replicas`, and prints JSON: the sizes, or the problems of the
configuration, with the exit code of wrong input.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cluster import environment
from trainer.cluster.messages import Channel
from trainer.config import loading
from trainer.config.schema import Experiment
from trainer.errors import DONE, WRONG_INPUT, ConfigError

if TYPE_CHECKING:
    import tensorflow as tf


def measure(experiment: Experiment, num_replicas: int) -> dict[str, Any]:
    """Build the models on one device, and measure them.

    Returns:
        `length` in words; `models`: name -> number of `trainable` and `fixed` parameters; `bytes`
        on a replica: weights, optimizer, averages, gradients, and the activations of one forward
        pass, which are the outputs of all layers.
    """
    from trainer.worker.run import SavedRun

    # No file is written, so there is no run directory.
    silent = Channel(lambda message: None)
    run = SavedRun(experiment, Path("/nonexistent"), silent, num_replicas=num_replicas)
    state, plan = run.state, run.plan
    models = state.task.models
    # Each once: several optimizers may have parts of one model.
    trainable = _each_once(x for model in models.values() for x in model.trainable_variables)
    optimizers = state.task.optimizers.values()
    epochs = plan.epochs.completed(plan.total_steps)
    return {
        "length": f"{plan.total_steps:,} steps" + (f", {epochs:,} epochs" if epochs else ""),
        "models": {
            name: {
                "trainable": _count(model.trainable_variables),
                "fixed": _count(model.non_trainable_variables),
            }
            for name, model in models.items()
        },
        "bytes": {
            "weights": _size(_each_once(x for model in models.values() for x in model.variables)),
            "optimizer": _size(item for optimizer in optimizers for item in optimizer.variables()),
            "averages": _size(item for items in state.averages.values() for item in items),
            "gradients": 4 * _count(trainable),  # they are added up in float32
            "activations": run.sizes.micro * sum(_activations(model) for model in models.values()),
        },
    }


def _each_once(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    return list({id(variable): variable for variable in variables}.values())


def _count(variables: Iterable[tf.Variable]) -> int:
    return sum(variable.shape.num_elements() for variable in variables)


def _size(variables: Iterable[tf.Variable]) -> int:
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def _activations(model: tf.keras.Model) -> int:
    """Return the bytes of the outputs of all layers for one example; 0 if Keras has none."""
    import tensorflow as tf

    keras_3 = getattr(model, "keras_model", None)
    layers = model.all_layers if keras_3 else model._flatten_layers(include_self=False)
    total = 0
    for layer in layers:
        if type(layer).__name__ == "InputLayer":
            continue
        for node in layer._inbound_nodes:  # none in a subclassed model
            shapes = [tensor.shape[1:] for tensor in tf.nest.flatten(node.outputs)]
            size = tf.as_dtype(layer.compute_dtype).size
            total += sum(math.prod(shape) * size for shape in shapes if all(shape))
    return total


def main() -> int:
    """Measure what standard input requests; return the exit code."""
    environment.prepare_environment()
    environment.add_working_directory()
    request = json.load(sys.stdin)
    try:
        sizes = measure(loading.restore(request["experiment"]), request["num_replicas"])
    except ConfigError as error:
        print(json.dumps(list(error.problems)))
        return WRONG_INPUT
    print(json.dumps(sizes))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
