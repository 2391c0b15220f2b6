"""Where a learner's process gets its parts of a batch of unrolls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trainer.reinforcement.learner_client import LearnerClient
from trainer.reinforcement.learner_server import Closed, LearnerServer, Part


class ChiefBatches:
    """Takes batches from the server in this process, and publishes weights through it.

    Args:
        server: the server.
        beat: called while it waits for unrolls.
        patience_secs: how long without an unroll the wait still counts as progress.
    """

    def __init__(
        self, server: LearnerServer, beat: Callable[[], None], patience_secs: float
    ) -> None:
        self._server = server
        self._beat = beat
        self._patience_secs = patience_secs
        self.publish: Callable[..., None] | None = server.publish
        self.begin = server.begin
        self.close = server.close

    def part(self, step: int, replica: int) -> Part:
        return self._server.part(step, replica, self._on_wait)

    def _on_wait(self) -> None:
        # Without actors for so long the watchdog is to end this attempt.
        if time.monotonic() - self._server.arrived_at < self._patience_secs:
            self._beat()


class RemoteBatches:
    """Takes batches from the chief's process.

    Args:
        run_dir: the run directory.
        beat: called while it waits for them.
    """

    publish: Callable[..., None] | None = None

    def __init__(self, run_dir: Path, beat: Callable[[], None]) -> None:
        self._client = LearnerClient(run_dir, self._on_wait)
        self._beat = beat
        self._is_closed = False

    def begin(self, step: int, counts: np.ndarray, weights: Sequence[np.ndarray]) -> None:
        """Do nothing: the chief begins."""

    def part(self, step: int, replica: int) -> Part:
        return list(self._client.part(step, replica))

    def close(self, *, finished: bool) -> None:
        # The pipeline that fetches ahead ends by itself: this process waits for its thread.
        self._is_closed = True

    def _on_wait(self) -> None:
        if self._is_closed:
            raise Closed
        self._beat()
