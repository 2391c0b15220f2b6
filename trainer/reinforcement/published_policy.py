"""A task's policy with weights of its own: those that the learner has published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Acts, EnvSpec, Task, lacking, names_of


class PublishedPolicy:
    """Acts with the newest weights that were assigned.

    Args:
        task: has been built.

    Raises:
        ConfigError: the task does not act.
    """

    def __init__(self, task: Task, spec: EnvSpec) -> None:
        acts = acting_task(task)
        self.unroll_length = acts.unroll_length
        self._variables = [
            variable for name in acts.acting_models for variable in task.models[name].variables
        ]
        self._act = tf.function(acts.act, autograph=False).get_concrete_function(
            *policy_signature(spec)
        )

    def assign(self, weights: Sequence[np.ndarray]) -> None:
        """Take other weights.

        Raises:
            ConfigError: they are those of another model.
        """
        if len(weights) != len(self._variables):
            raise ConfigError(
                f"task: the learner sends {len(weights)} weights, and this actor has "
                f"{len(self._variables)}; start all processes with the same command"
            )
        for variable, value in zip(self._variables, weights, strict=True):
            variable.assign(value)

    def act(
        self, observations: np.ndarray, seed: np.ndarray, exploration: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what the policy does; see `trainer.protocols.Acts.act`."""
        outputs = self._act(
            tf.constant(observations), tf.constant(seed, tf.int64), tf.constant(exploration)
        )
        return {name: output.numpy() for name, output in outputs.items()}


def acting_task(task: Any) -> Acts:
    """Return a task that acts.

    Raises:
        ConfigError: it does not, or lacks a member that this needs.
    """
    if not hasattr(task, "act"):
        raise ConfigError(
            f"task ({type(task).__name__}) learns from a dataset and has no `act`; choose one that "
            "acts in env, such as task=impala, or remove env"
        )
    if problems := lacking("task", task, names_of(Acts)):
        raise ConfigError(*problems)
    acts: Acts = task
    return acts


def policy_signature(spec: EnvSpec) -> tuple[tf.TensorSpec, tf.TensorSpec, tf.TensorSpec]:
    """Return shape and type of the arguments of `trainer.protocols.Acts.act`."""
    return (
        tf.TensorSpec([None, *spec.observation_shape], spec.observation_dtype),
        tf.TensorSpec([2], tf.int64),
        tf.TensorSpec([None], tf.float32),
    )
