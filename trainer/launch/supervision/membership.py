"""How many of the configured workers a run has, when some are lost (elastic clusters)."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainer.cluster.messages import Availability
from trainer.config.rules.batch_sizes import divides
from trainer.config.schema import Batch, Experiment
from trainer.strategies.strategy import Strategy


def of(strategy: Strategy, experiment: Experiment) -> Membership | None:
    """Return the membership of a cluster that is started here; None: it always has all workers.

    On Ray it is the placement that decides how many there are.
    """
    if strategy.min_workers is None or experiment.launch.uses_ray:
        return None
    return Membership(sizes(strategy, experiment.batch), strategy.rejoin_secs)


def sizes(strategy: Strategy, batch: Batch) -> list[int]:
    """Return with how many processes a run may go on, the most first; it has at least one."""
    full = len(strategy.process_ids(None)) or 1
    least = full if strategy.min_workers is None else strategy.min_workers
    return [full, *(size for size in range(full - 1, least - 1, -1) if divides(batch, size))]


class Membership:
    """Which of the configured workers the next attempt starts.

    A worker's place is its number in the full cluster. The processes of an attempt are numbered
    without gaps, as TensorFlow requires, so worker-1 may run in place 2.

    Attributes:
        full: how many workers are configured.
        rejoin_secs: how long to wait for a lost worker.

    Args:
        allowed: with how many workers the run may go on, the most first; see `sizes`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        allowed: list[int],
        rejoin_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.full = allowed[0]
        self.rejoin_secs = rejoin_secs
        self._allowed = allowed
        self._clock = clock
        self._away: list[int] = []
        self._places = list(range(self.full))
        self._failing: tuple[int, float] | None = None  # a place, and since when

    @property
    def size(self) -> int:
        """How many workers to start: as many as can be had and the batch can be divided among."""
        most = self.full - len(self._away)
        return next((size for size in self._allowed if size <= most), 0)

    @property
    def is_enough(self) -> bool:
        """Whether the run may go on with those workers that can be had."""
        return self.size > 0

    @property
    def is_shrinking(self) -> bool:
        """Whether the next attempt has fewer workers than the last."""
        return self.size < len(self._places)

    @property
    def missing(self) -> str:
        """Name the lost workers, by their places."""
        return ", ".join(f"worker-{place}" for place in self._away)

    def begin(self) -> int:
        """Return how many workers an attempt is to start, and note where they are."""
        size = self.size
        self._places = [place for place in range(self.full) if place not in self._away][:size]
        return size

    def update(self, change: Availability) -> bool:
        """Note that a worker is lost or back; return whether the attempt should grow."""
        number = int(change.process.rpartition("-")[2])
        if not change.is_back:
            self._lose(self._places[number])
            return False
        if number not in self._away:
            return False
        self._away.remove(number)
        return self.size > len(self._places)

    def record_start_failure(self, name: str) -> None:
        """Note that a process was lost before it trained; a worker's place is lost if that goes on.

        An evaluator has no place among the workers.
        """
        job, _, number = name.rpartition("-")
        if job != "worker":
            return
        place = self._places[int(number)]
        if self._failing is None or self._failing[0] != place:
            self._failing = (place, self._clock())
        elif self._clock() - self._failing[1] >= self.rejoin_secs:
            self._lose(place)

    def record_start(self) -> None:
        """Note that all workers of the attempt have started."""
        self._failing = None

    def _lose(self, place: int) -> None:
        self._away = sorted({*self._away, place})
