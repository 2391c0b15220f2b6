"""The directions of the metrics of a run, as its record or its configuration tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config.directions import Directions, of_targets
from trainer.errors import ConfigError
from trainer.runs import directory, provenance


def read(path: Path) -> Directions:
    """Return the directions of a run's metrics: as recorded, or as the source declares them now.

    Args:
        path: the run directory; what cannot be read declares nothing.
    """
    try:
        record = provenance.read(path).get("metrics")
    except ConfigError:
        record = None
    if isinstance(record, dict):
        return Directions(record["direction"], record["primary"])
    try:
        config = directory.read_config(path)
        metrics = {name: node["_target_"] for name, node in (config["metrics"] or {}).items()}
        task: Any = config["task"]
        return of_targets(task and task["_target_"], metrics)
    except (ConfigError, OSError, KeyError, TypeError, AttributeError):
        return Directions()
