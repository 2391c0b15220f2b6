"""A replay: unrolls are kept, and each is trained on several times, in random order."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from trainer.annotations import Ge, Gt
from trainer.errors import ConfigError
from trainer.protocols import Unroll


class Replay:
    """Keeps the newest unrolls in rings of arrays, and draws from them uniformly.

    What is drawn for a step follows from the seed, the step and the unrolls that are there.

    How often an unroll is drawn does not depend on which is faster, actors or learner. With I
    unrolls added and S drawn, and b the larger of a batch and `samples_per_insert`,

        |samples_per_insert * (I - min_size) - S| <= b

    from when the first `min_size` are there: the side that is ahead waits, never both. It is the
    rate limiter of Reverb (Cassirer et al. 2021).

    Raises:
        ConfigError: `min_size` is larger than `capacity`.
    """

    def __init__(
        self,
        *,
        capacity: Annotated[int, Ge(1)] = 10_000,
        min_size: Annotated[int, Ge(1)] = 100,
        samples_per_insert: Annotated[float, Gt(0)] = 32.0,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        if min_size > capacity:
            raise ConfigError(
                f"buffer.min_size ({min_size}) must be at most buffer.capacity ({capacity}), or "
                "training never starts; make one of them fit"
            )
        self._capacity = capacity
        self._min_size = min_size
        self._samples_per_insert = samples_per_insert
        self._seed = seed
        self._slack = 0.0
        self._inserts = 0
        self._samples = 0
        self._rings: dict[str, np.ndarray] = {}
        self._versions = np.zeros(capacity, np.int64)
        self._trained = np.zeros(capacity, bool)
        self.dropped = 0

    @property
    def waiting(self) -> int:
        return self._size - int(self._trained[: self._size].sum())

    @property
    def _size(self) -> int:
        return min(self._inserts, self._capacity)

    @property
    def _ahead(self) -> float:
        """Draws that the unrolls allow and that were not made yet; negative: made too early."""
        return self._samples_per_insert * (self._inserts - self._min_size) - self._samples

    def begin(self, batch_size: int) -> None:
        self._slack = max(float(batch_size), self._samples_per_insert)
        self._inserts = 0
        self._samples = 0
        self._rings = {}
        self._trained[:] = False
        self.dropped = 0

    def has_room(self) -> bool:
        if self._inserts < self._min_size:
            return True
        return self._ahead + self._samples_per_insert <= self._slack

    def add(self, unroll: Unroll) -> None:
        if not self._rings:
            self._rings = {
                name: np.empty((self._capacity, *array.shape), array.dtype)
                for name, array in unroll.arrays.items()
            }
        place = self._inserts % self._capacity
        if self._inserts >= self._capacity and not self._trained[place]:
            self.dropped += 1
        for name, ring in self._rings.items():
            ring[place] = unroll.arrays[name]
        self._versions[place] = unroll.version
        self._trained[place] = False
        self._inserts += 1

    def take(self, step: int, count: int) -> list[Unroll] | None:
        """Draw the unrolls of training step `step`, with replacement; None: the learner must wait.

        They are views of what is kept, valid until the next `add`.
        """
        if self._inserts < self._min_size or self._ahead + self._slack < count:
            return None
        places = np.random.default_rng([self._seed, step]).integers(self._size, size=count)
        self._samples += count
        self._trained[places] = True
        return [
            Unroll(
                {name: ring[place] for name, ring in self._rings.items()},
                int(self._versions[place]),
            )
            for place in places
        ]
