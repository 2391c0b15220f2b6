"""Nodes of a task: models, optimizers and schedules that are options of it.

The constructor of a task receives one where the annotation of an option is a class of this module.
Annotations are read from source, without an import, so they must have these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Node:
    """A choice that is an option of a task: configured with it, and built by its `build`.

    Attributes:
        key: its dotted key, such as `task.generator`.
        options: `_target_` and its options, as plain containers.
    """

    key: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the option."""
        return self.key.rpartition(".")[2]


class ModelNode(Node):
    """A model, for `TaskParts.model`: `/model@generator: <choice>` in the task's YAML file."""


class OptimizerNode(Node):
    """An optimizer, for `TaskParts.optimizer`: `/optimizer@generator_optimizer: <choice>`."""


class ScheduleNode(Node):
    """A schedule, for `TaskParts.optimizer`: `/schedule@generator_schedule: <choice>`."""
