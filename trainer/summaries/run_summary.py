"""The introduction of a run in its summaries: its configuration, and the graph of its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.schema import Experiment
from trainer.files import read_text
from trainer.protocols import Task
from trainer.runs import provenance
from trainer.summaries.hparams import hyperparameters
from trainer.summaries.writers.opening import open_writers
from trainer.summaries.writers.writer import Writer


def write_run_summary(
    writers: Sequence[Writer], position: int, run_dir: Path, graph: bytes | None
) -> None:
    """Write the configuration, at position 0 alone, and the graph of the model.

    Args:
        writers: writers that were opened at this position.
        position: number of updates already reported.
        run_dir: the run directory.
        graph: a serialized GraphDef; None: there is none.
    """
    config = run_dir / "config.yaml"
    texts = {}
    if position == 0 and config.exists():
        texts = {"config": _code_block(read_text(config), "yaml")}
        overrides = provenance.read(run_dir).get("overrides", ())
        texts["overrides"] = _code_block("\n".join(overrides))
    for writer in writers:
        for name, text in texts.items():
            writer.text(name, text)
        if graph is not None:
            writer.graph(graph)


def writer_factory(
    experiment: Experiment, run_dir: Path, task: Task | None, channel: Channel, *, writes: bool
) -> Callable[[int], list[Writer]]:
    """Return a function that opens the writers of the training at a position.

    Args:
        experiment: the configuration.
        run_dir: the run directory.
        task: its first model is drawn; None: there is none to draw.
        channel: receives warnings.
        writes: whether this process writes; if not, the function opens none.
    """
    graph = None
    if task is not None and experiment.summary.graph and experiment.trains:
        graph = graph_of(next(iter(task.models.values())), channel)

    def open_at(position: int) -> list[Writer]:
        if not writes:
            return []
        writers = open_writers(experiment.writers, run_dir, position, channel)
        for writer in writers:
            writer.hyperparameters(hyperparameters(experiment))
        write_run_summary(writers, position, run_dir, graph)
        return writers

    return open_at


def graph_of(model: tf.keras.Model, channel: Channel) -> bytes | None:
    """Return the graph of a model's forward pass, a serialized GraphDef.

    Every process must call this: reading per-replica variables is collective. A model without
    known inputs has no graph; that is a warning.
    """
    if not model.inputs:
        channel.line(
            f"warning: summary.graph: model {model.name} does not say what shape its input has, "
            "so there is no graph to show"
        )
        return None
    signature = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), model.input)
    forward = tf.function(lambda features: model(features, training=False), autograph=False)
    graph = forward.get_concrete_function(signature).graph
    return graph.as_graph_def().SerializeToString()


def _code_block(text: str, language: str = "") -> str:
    return f"```{language}\n{text.rstrip()}\n```"
