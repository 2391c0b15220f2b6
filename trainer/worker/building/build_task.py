"""Builds a task, with its variables and layers on the devices of each replica."""

from __future__ import annotations

import tensorflow as tf

from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.engine.graph.placement.layer_placement import LayerPlacement, place_layers
from trainer.engine.graph.placement.placed_model import (
    compute_on_devices,
    draft_variables,
    variables_on,
)
from trainer.engine.graph.placement.requested_devices import no_devices_for_variables
from trainer.logical_devices import groups_of
from trainer.protocols import Task
from trainer.worker.building import members
from trainer.worker.building.task_parts import Parts


class TaskBuilder:
    """Builds the configured task; where replicas have several devices, on all of them.

    Args:
        experiment: the effective configuration.
        tf_strategy: TensorFlow's strategy.
    """

    def __init__(self, experiment: Experiment, tf_strategy: tf.distribute.Strategy) -> None:
        self._experiment = experiment
        self._groups = groups_of(tf_strategy)
        self._planned = LayerPlacement()
        self._devices: list[int] = []

    @property
    def placement(self) -> dict[str, int]:
        """The logical device of each layer that has one, by its path."""
        return self._planned.devices

    def draft(self, parts: Parts) -> None:
        """Decide what goes where, outside the strategy's scope.

        Raises:
            ConfigError: an option is wrong, the task lacks a member, or a layer cannot be placed.
        """
        groups = self._groups
        if groups is None:
            return
        tf.keras.backend.reset_uids()
        with draft_variables(groups) as draft:
            models = self._build(parts).models
            self._planned = place_layers(models, groups.placement, groups.count, draft.requested)
        self._devices = draft.devices(self._planned)
        # The next task is the one that would have been built alone: the same names and weights.
        tf.keras.backend.reset_uids()
        tf.keras.utils.set_random_seed(self._experiment.seed)

    def build(self, parts: Parts) -> Task:
        """Build the task, in the strategy's scope.

        Raises:
            ConfigError: an option is wrong, or the task lacks a member.
        """
        if self._groups is None:
            return self._build(parts)
        with variables_on(self._devices, self._groups):
            task = self._build(parts)
        compute_on_devices(self._planned.transferred(task.models))
        return task

    def _build(self, parts: Parts) -> Task:
        task: Task = instantiate(self._experiment.task, "task")
        members.check_task(task)
        members.check_label_kind(task, parts.label_kind)
        with no_devices_for_variables():
            task.build(parts)
        members.check_built_task(task, parts.dataset)
        parts.check_models()
        return task
