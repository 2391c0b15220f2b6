"""Gets the published weights of the models of an experiment before any process is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer import published_weights
from trainer.config.options import targets
from trainer.config.schema import Experiment
from trainer.errors import ConfigError


def fetch(experiment: Experiment) -> None:
    """Have the published weights in Keras' cache of this host; print what is downloaded.

    The model's function asks for them again, and knows the size of the images where the
    configuration does not say it.

    Args:
        experiment: the experiment.

    Raises:
        ConfigError: a file can neither be found nor downloaded.
    """
    size = (experiment.dataset or {}).get("image_size")
    for path, node in _model_nodes(experiment):
        if (network := targets.published_network(node)) is None:
            continue
        try:
            weights = published_weights.find(
                network,
                size if isinstance(size, list) and len(size) == 2 else None,
                alpha=node.get("alpha", 1.0),
                with_classifier=node.get("outputs") is not None,
            )
            published_weights.fetch(weights, lambda line: print(line, flush=True))
        except ConfigError as error:
            raise ConfigError(f"{path}.{error}") from error


def _model_nodes(experiment: Experiment) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the dotted key and the node of each model."""
    task = experiment.task or {}
    groups = targets.node_groups(task.get("_target_"))
    names = [name for name, group in groups.items() if group == "model"]
    nodes = {"model": experiment.model, **{f"task.{name}": task.get(name) for name in names}}
    for path, node in nodes.items():
        if isinstance(node, Mapping) and "_target_" in node:
            yield path, node
