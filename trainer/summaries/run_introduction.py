"""The introduction of a run in its summaries: its configuration, and the graph of its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import yaml

from trainer.cluster.messages import Channel
from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.protocols import Task
from trainer.runs import identity, provenance
from trainer.runs.directory import read_config
from trainer.runs.secret_masking import shown
from trainer.summaries.writers.background import open_writers
from trainer.summaries.writers.writer import Writer


def writer_factory(
    experiment: Experiment, run_dir: Path, task: Task | None, channel: Channel, *, writes: bool
) -> Callable[[int], list[Writer]]:
    """Return a function that opens the writers of the training at a position.

    The first model of `task` is drawn. In a process that does not write, it opens none.
    """
    graph = None
    if task is not None and experiment.summary.graph and experiment.trains:
        graph = graph_of(next(iter(task.models.values())), channel)

    def open_at(position: int) -> list[Writer]:
        if not writes:
            return []
        writers = open_writers(experiment.writers, run_dir, position, channel)
        texts = _configuration(run_dir) if position == 0 else {}
        for writer in writers:
            writer.hyperparameters(hyperparameters(experiment))
            for name, text in texts.items():
                writer.text(name, text)
            if graph is not None:
                writer.graph(graph)
        return writers

    return open_at


def graph_of(model: tf.keras.Model, channel: Channel) -> bytes | None:
    """Return the graph of a model's forward pass, a serialized GraphDef.

    Every process must call this: reading per-replica variables is collective. A model without
    known inputs has no graph; that is a warning.
    """
    if not model.inputs:
        channel.line(
            f"warning: summary.graph: model {model.name} does not declare the shape of its input, "
            "so there is no graph to show"
        )
        return None
    signature = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), model.input)
    forward = tf.function(lambda features: model(features, training=False), autograph=False)
    graph = forward.get_concrete_function(signature).graph
    return graph.as_graph_def().SerializeToString()


def _configuration(run_dir: Path) -> dict[str, str]:
    if not (run_dir / "config.yaml").exists():
        return {}
    config = yaml.safe_dump(shown(read_config(run_dir)), sort_keys=False)
    overrides = "\n".join(provenance.read(run_dir).get("overrides", ()))
    return {
        "config": f"```yaml\n{config.rstrip()}\n```",
        "overrides": f"```\n{overrides}\n```",
    }


_CHOICES = (
    "model", "dataset", "augment", "task", "optimizer", "schedule", "strategy", "callbacks", "loop"
)  # fmt: skip
"""Groups whose choice is shown in addition to its values."""


def hyperparameters(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Return the hyperparameters: choices by group, such as `model`, and values by dotted key.

    They are the keys that name a run. A null is left out, and so is a `_target_`, because the
    choice is its name.
    """
    found: dict[str, Any] = {
        group: choice
        for group, choice in (experiment.choices or {}).items()
        if group in _CHOICES or "." in group  # a node of the task
    }
    values = shown(identity.leaves(experiment))
    for key, value in values.items():
        if identity.names_run(key, values) and not key.endswith("._target_"):
            is_plain = value is None or isinstance(value, bool | int | float | str)
            found[key] = value if is_plain else value and constraints.format_value(value)
    return {key: value for key, value in found.items() if value not in (None, {}, [])}
