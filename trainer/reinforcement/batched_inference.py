"""Acting in the learner's process: all actors that wait are answered in one batch.

After SEED RL (Espeholt et al. 2020), where actors have no network of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.protocols import EnvSpec
from trainer.reinforcement.published_policy import PublishedPolicy

Outputs = Mapping[str, np.ndarray]
"""`action`, and what else an unroll has of each frame: name -> [N, ...]."""


class PolicyError(Exception):
    """The task's policy has failed; the cause is its error."""


@dataclass
class _Request:
    observations: np.ndarray
    exploration: np.ndarray
    version: int = -1
    outputs: Outputs | None = None
    error: Exception | None = None

    @property
    def is_answered(self) -> bool:
        return self.outputs is not None or self.error is not None


class BatchedInference:
    """Answers observations; each thread that asks waits for its answer.

    There is no thread and no timer of its own. Whoever asks while nobody is answered makes a batch
    of all that wait. Those who ask meanwhile are the next batch: the slower the policy is against
    the environments, the larger the batches are.

    Args:
        policy: called by one thread at a time.
        spec: the environment's observations.
        seed: of the policy's draws.
    """

    def __init__(self, policy: PublishedPolicy, spec: EnvSpec, seed: int) -> None:
        self._policy = policy
        self._spec = spec
        self._seeds = np.random.default_rng(seed)
        self._published: tuple[int, Sequence[np.ndarray]] = (-1, ())
        self._version = -1
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._is_busy = False

    def publish(self, version: int, weights: Sequence[np.ndarray]) -> None:
        """Act with other weights from the next batch on.

        Args:
            version: the number of updates that they have seen.
            weights: they must not be changed later.
        """
        self._published = version, weights

    def act(self, observations: np.ndarray, exploration: np.ndarray) -> tuple[int, Outputs]:
        """Return what to do, and the number of updates that the weights which acted have seen.

        Args:
            observations: [E, ...], those of one actor.
            exploration: [E] float32; see `trainer.protocols.Acts.act`.

        Raises:
            ValueError: the observations are those of another environment.
            PolicyError: the policy has failed.
        """
        self._check(observations, exploration)
        request = _Request(observations, exploration)
        batch: list[_Request] = []
        with self._changed:
            self._waiting.append(request)
            self._changed.wait_for(lambda: request.is_answered or not self._is_busy)
            if not request.is_answered:
                self._is_busy = True
                batch, self._waiting = self._waiting, []
        if batch:
            self._answer(batch)
        if request.error is not None:
            raise PolicyError(str(request.error)) from request.error
        assert request.outputs is not None
        return request.version, request.outputs

    def _check(self, observations: np.ndarray, exploration: np.ndarray) -> None:
        spec = self._spec
        shape = (len(exploration), *spec.observation_shape)
        if observations.shape != shape or observations.dtype.name != spec.observation_dtype:
            raise ValueError(
                f"env: an actor's observations ({observations.dtype.name}, "
                f"{list(observations.shape[1:])}) are not the learner's ({spec.observation_dtype}, "
                f"{list(spec.observation_shape)}); start all processes with the same command"
            )

    def _answer(self, batch: Sequence[_Request]) -> None:
        error: Exception | None = None
        parts: list[Outputs] = []
        version = -1
        try:
            version, parts = self._act(batch)
        except Exception as failure:  # whatever a task raises
            error = failure
        with self._changed:
            for number, request in enumerate(batch):
                request.version = version
                request.outputs = None if error else parts[number]
                request.error = error
            self._is_busy = False
            self._changed.notify_all()

    def _act(self, batch: Sequence[_Request]) -> tuple[int, list[Outputs]]:
        """Return the version, and the outputs of each request."""
        version, weights = self._published
        if version != self._version:
            self._policy.assign(weights)
            self._version = version
        outputs = self._policy.act(
            np.concatenate([request.observations for request in batch]),
            self._seeds.integers(2**62, size=2),
            np.concatenate([request.exploration for request in batch]),
        )
        ends = np.cumsum([len(request.exploration) for request in batch])[:-1]
        divided = {name: np.split(array, ends) for name, array in outputs.items()}
        return version, [
            {name: arrays[number] for name, arrays in divided.items()}
            for number in range(len(batch))
        ]
