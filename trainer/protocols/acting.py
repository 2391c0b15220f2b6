"""The protocols of reinforcement learning: what the engine uses of a task that acts, and a buffer.

Environments are those of gymnasium. An unroll is what one environment went through in a row, a
mapping from names to arrays whose first dimension is time; T is the length:

    observation                            [T + 1, ...], the last one after the last action
    action, and what else `act` returns    [T, ...]
    reward                                 [T] float32
    terminated                             [T] float32, 1: no reward follows; 0 after a time limit
    is_step                                [T] float32, 0: the row only resets the environment. Its
                                           observation is the last one of the episode before, its
                                           action is ignored and its reward is 0
    episode_end, episode_return, episode_length
                                           [T] float32, of the episode that ends in the row, else 0

A row is a frame. `train_step` receives a batch of unrolls, [B, ...], with `staleness`, [B] float32:
the number of updates between the weights that acted at the begin of the unroll and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


@dataclass(frozen=True)
class EnvSpec:
    """The observations and actions of an environment.

    Attributes:
        observation_shape: shape of an observation.
        observation_dtype: NumPy's name of its type.
        action_shape: shape of an action; () where actions are numbered.
        action_dtype: NumPy's name of its type.
        num_actions: number of actions; None: actions are vectors.
        low: lowest value of each component of an action, flat; None: actions are numbered.
        high: highest value of each component.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    num_actions: int | None
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    @property
    def num_outputs(self) -> int:
        """Number of actions, or of the components of one."""
        return self.num_actions if self.low is None else len(self.low)  # type: ignore[return-value]


@runtime_checkable
class Acts(Protocol):
    """A task that learns from environments: what it has in addition to the members of `Task`.

    It needs no `eval_step`: an evaluation runs whole episodes.

    Attributes:
        unroll_length: number of frames in an unroll.
        acting_models: names of the models that `act` and `act_greedily` use; known after `build`.
    """

    unroll_length: int
    acting_models: tuple[str, ...]

    def act(
        self, observations: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor
    ) -> Mapping[str, tf.Tensor]:
        """Return `action`, [N, ...], and what else the unroll is to have, as the policy explores.

        Runs in a graph; N is unknown when that is made, and may be another one in each call.

        Args:
            observations: [N, ...], one of each environment, of one or of several actors.
            seed: [2] int64, another one in each call.
            exploration: [N] float32, how far each environment is to explore: always (e + 1) / E for
                number e of an actor's E. A policy that draws its actions may ignore it.
        """

    def act_greedily(self, observations: tf.Tensor) -> tf.Tensor:
        """Return the actions, [E, ...], that the policy takes for the best."""


class LoopDefaults:
    """What an environment has in place of a dataset.

    Attributes:
        env: its observations and actions.
        count_names: names of what is counted in addition to steps; in every checkpoint.
        make_loop: `make_loop(run)` makes the training loop, from a
            `trainer.worker.training.TrainingRun`.
        make_evaluator: as in `TaskDefaults`; a task's own comes first.
    """

    env: EnvSpec | None = None
    count_names: Sequence[str] = ()
    make_loop: Callable[[Any], Any] | None = None
    make_evaluator: Callable[[Any, Any, Any], Any] | None = None


@dataclass(frozen=True)
class Unroll:
    """What one environment went through.

    Attributes:
        arrays: name -> [T, ...]; `observation` has a row more.
        version: number of updates that the weights had seen when it was begun.
    """

    arrays: Mapping[str, np.ndarray]
    version: int


class Buffer(Protocol):
    """Keeps unrolls in the chief's process until they are trained on; one call at a time.

    Attributes:
        dropped: number of unrolls that it has dropped untrained.
        waiting: number of unrolls that it holds.
    """

    dropped: int

    @property
    def waiting(self) -> int:
        """Number of unrolls that it holds."""

    def begin(self, batch_size: int) -> None:
        """Begin empty, for batches of so many unrolls."""

    def has_room(self) -> bool:
        """Return whether it takes another unroll; if not, the actor that sends one waits."""

    def add(self, unroll: Unroll) -> None:
        """Add an unroll."""

    def take(self, step: int, count: int) -> list[Unroll] | None:
        """Return the unrolls of training step `step`; None: there are not enough yet."""


class Environment(Protocol):
    """What the engine uses of a gymnasium environment."""

    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        """Begin an episode; return its first observation."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Mapping[str, Any]]:
        """Return observation, reward, whether terminated, whether truncated, and more."""
