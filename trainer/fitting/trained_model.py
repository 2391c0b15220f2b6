"""The weights of a run's checkpoint in a model of the process that called `fit`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.schema import Checkpoint
from trainer.errors import ConfigError
from trainer.fitting.keras_pickling import library_of
from trainer.runs.checkpoint_selection import select_step

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_NUMBER = re.compile(r"^models/[^/]+/saved/(\d+)_")
"""Of a weight of Keras 3."""


def restored(model: Any, run_dir: Path, checkpoint: str | int) -> Any:
    """Return a model with the weights of a checkpoint, averaged ones where it has them.

    Args:
        model: built as that of the run.
        run_dir: the run directory.
        checkpoint: latest, best, or a step.

    Raises:
        ConfigError: there is no such checkpoint, or the model does not fit.
    """
    step = select_step(run_dir, Checkpoint(use=checkpoint))
    prefix = str(run_dir / "checkpoints" / f"ckpt-{step}")
    reader = import_module("tensorflow").train.load_checkpoint(prefix)
    keys = list(reader.get_variable_to_shape_map())
    places = [key for key in keys if key.startswith("models/")]
    names = {key.split("/")[1] for key in places}
    name = "model" if "model" in names else min(names)  # others: parts that have an optimizer
    if library_of(model).__name__ == "keras":
        numbered = {int(match[1]): key for key in places if (match := _NUMBER.search(key))}
        keys_of = [numbered.get(number) for number in range(len(model.weights))]
        for weight, key in zip(model.weights, keys_of, strict=True):
            if key is not None:
                weight.assign(reader.get_tensor(key))
    else:
        read = import_module("tensorflow").train.Checkpoint(models={name: model}).read(prefix)
        read.expect_partial()  # the checkpoint has no variables of the model's optimizer
    # Vocabularies are weights of tf_keras too, and the checkpoint also has the compiled metrics.
    weights = [weight for weight in model.weights if not hasattr(weight, "num_tensors")]
    if not weights or _values(weights) - _values(map(reader.get_tensor, places)):
        raise ConfigError(
            f"{run_dir}: the checkpoint of step {step} has other weights than the model has now; "
            "if it has none yet, call it once on examples before fit"
        )
    for number, weight in enumerate(model.trainable_variables):
        if (key := f"averages/{name}/{number}{_VALUE}") in keys:
            weight.assign(reader.get_tensor(key))
    return model


def _values(arrays: Iterable[Any]) -> Counter[bytes]:
    return Counter(np.asarray(array).tobytes() for array in arrays)
