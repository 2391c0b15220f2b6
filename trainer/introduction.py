"""What a run's summaries begin with: its configuration, and the graph of its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from trainer import provenance
from trainer.channel import Channel
from trainer.protocols import Task
from trainer.schema import Experiment
from trainer.writers.base import Writer
from trainer.writers.opening import open_writers


def introduce(writers: Sequence[Writer], position: int, run_dir: Path, graph: bytes | None) -> None:
    """Tells writers that were opened at a position what the run is: how it was configured, once; its graph, if there is one."""
    config, texts = run_dir / "config.yaml", {}
    if position == 0 and config.exists():
        texts = {"config": _fenced(config.read_text(encoding="utf-8"), "yaml")}
        texts["overrides"] = _fenced("\n".join(provenance.read(run_dir)["overrides"]))
    for writer in writers:
        for name, text in texts.items():
            writer.text(name, text)
        if graph is not None:
            writer.graph(graph)


def opener(experiment: Experiment, run_dir: Path, task: Task, channel: Channel, *, writes: bool) -> Callable[[int], list[Writer]]:
    """Gives what opens the writers of the training at a position; there are none in a process that does not write."""
    wanted = experiment.summary.graph and experiment.mode == "train"
    graph = graph_of(next(iter(task.models.values())), channel) if wanted else None

    def opened(position: int) -> list[Writer]:
        writers = open_writers(experiment, run_dir, position, channel) if writes else []
        introduce(writers, position, run_dir, graph)
        return writers

    return opened


def graph_of(model: tf.keras.Model, channel: Channel) -> bytes | None:
    """Traces a model's forward pass; gives a serialized GraphDef.

    All processes must: to read what each replica keeps for itself is collective. A model that does not say what it takes has no
    graph: a warning.
    """
    if not model.inputs:
        channel.line(f"warning: summary.graph: model {model.name} does not say what shape its input has, so there is no graph to show")
        return None
    signature = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), model.input)
    traced = tf.function(lambda features: model(features, training=False), autograph=False).get_concrete_function(signature)
    return traced.graph.as_graph_def().SerializeToString()


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text.rstrip()}\n```"
