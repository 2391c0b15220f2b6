"""Environments side by side in one process, what acts in them, and what they go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Acts, Environment, EnvSpec, lacking, names_of

FLAGS = ("reward", "terminated", "is_step", "episode_end", "episode_return", "episode_length")
"""What is recorded of each frame in addition to the observation and what the policy returns."""

Policy = Callable[[np.ndarray], Mapping[str, np.ndarray]]
"""From observations, [E, ...], to `action` and more, [E, ...]."""


def spec_of(environment: Environment) -> EnvSpec:
    """Return the observations and actions of an environment.

    Raises:
        ConfigError: they are neither numbers nor arrays.
    """
    observation = environment.observation_space
    action = environment.action_space
    for name, space in (("observation", observation), ("action", action)):
        if getattr(space, "shape", None) is None or not hasattr(space, "dtype"):
            raise ConfigError(
                f"env: its {name}_space ({type(space).__name__}) must be a Box"
                f"{' or Discrete' if name == 'action' else ''}; wrap the environment"
            )
    num_actions = int(action.n) if hasattr(action, "n") else None
    is_vector = num_actions is None
    return EnvSpec(
        tuple(observation.shape),
        np.dtype(observation.dtype).name,
        tuple(action.shape),
        np.dtype(action.dtype).name,
        num_actions,
        tuple(map(float, np.ravel(action.low))) if is_vector else None,
        tuple(map(float, np.ravel(action.high))) if is_vector else None,
    )


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


class EnvironmentGroup:
    """Steps several environments; one whose episode has ended is reset in the next step.

    Args:
        seed: of the first episodes; the environments continue from there.
    """

    def __init__(self, environments: Sequence[Environment], seed: int) -> None:
        self._environments = environments
        self._first = int(getattr(environments[0].action_space, "start", 0))
        self._is_numbered = hasattr(environments[0].action_space, "n")
        seeds = np.random.SeedSequence(seed).generate_state(len(environments))
        self.observations = np.stack(
            [
                environment.reset(seed=int(number))[0]
                for environment, number in zip(environments, seeds, strict=True)
            ]
        )
        self._ended = np.zeros(len(environments), bool)
        self._returns = np.zeros(len(environments))
        self._lengths = np.zeros(len(environments))

    def step(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Take actions, [E, ...]; return the row of an unroll, name -> [E] float32."""
        count = len(self._environments)
        row = {
            name: np.zeros(count, np.float32)
            for name in ("reward", "terminated", "episode_end", "episode_return", "episode_length")
        }
        row["is_step"] = 1.0 - self._ended.astype(np.float32)
        observations = np.empty_like(self.observations)
        for number, environment in enumerate(self._environments):
            if self._ended[number]:
                observations[number] = environment.reset()[0]
                self._ended[number] = False
                self._returns[number] = self._lengths[number] = 0
                continue
            action = int(actions[number]) + self._first if self._is_numbered else actions[number]
            observation, reward, terminated, truncated, _ = environment.step(action)
            observations[number] = observation
            row["reward"][number] = reward
            row["terminated"][number] = terminated
            self._returns[number] += float(reward)
            self._lengths[number] += 1
            if terminated or truncated:
                self._ended[number] = True
                row["episode_end"][number] = 1.0
                row["episode_return"][number] = self._returns[number]
                row["episode_length"][number] = self._lengths[number]
        self.observations = observations
        return row

    def close(self) -> None:
        for environment in self._environments:
            if hasattr(environment, "close"):
                environment.close()


def unroll(group: EnvironmentGroup, policy: Policy, length: int) -> dict[str, np.ndarray]:
    """Step all environments `length` times: name -> [E, T, ...]; `observation` has a row more."""
    rows: list[dict[str, Any]] = []
    observations = [group.observations]
    for _ in range(length):
        taken = policy(group.observations)
        rows.append({**taken, **group.step(taken["action"])})
        observations.append(group.observations)
    arrays = {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}
    return {"observation": np.stack(observations, axis=1), **arrays}


def run_episodes(
    group: EnvironmentGroup, act: Callable[[np.ndarray], np.ndarray], check: Callable[[], None]
) -> dict[str, np.ndarray]:
    """Run an episode in each environment; return its `return` and `episode_length`, [E] float64.

    Args:
        check: called before each step; may raise an error to end the episodes.
    """
    count = len(group.observations)
    returns = np.zeros(count)
    lengths = np.zeros(count)
    is_over = np.zeros(count, bool)
    while not is_over.all():
        check()
        row = group.step(act(group.observations))
        ends = (row["episode_end"] > 0) & ~is_over
        returns[ends] = row["episode_return"][ends]
        lengths[ends] = row["episode_length"][ends]
        is_over |= ends
    return {"return": returns, "episode_length": lengths}
