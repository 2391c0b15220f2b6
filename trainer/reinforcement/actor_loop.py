"""The training loop of a task whose batches come from actors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.reinforcement.actor_feed import ActorFeed


class ActorTrainLoop(TrainLoop):
    """Runs training steps on unrolls, and tells what became of the frames.

    Args:
        *parts: as in `TrainLoop`.
        actor_feed: how unrolls reach the replicas, without what wraps it.
        frames_per_step: frames in the batch of a step.
        **options: as in `TrainLoop`.
    """

    def __init__(
        self, *parts: Any, actor_feed: ActorFeed, frames_per_step: int, **options: Any
    ) -> None:
        super().__init__(*parts, **options)
        self._actor_feed = actor_feed
        self._frames_per_step = frames_per_step

    def totals(self) -> dict[str, int]:
        """Return the frames that were trained on, that have arrived, and what became of those."""
        generated, dropped, lost, waiting = map(int, self._actor_feed.counts.numpy())
        trained = int(self.state.step.numpy()) * self._frames_per_step
        return {
            "frames": trained,
            "frames_generated": generated,
            "frames_dropped": dropped,
            "frames_lost": lost,
            "frames_waiting": waiting,
        }

    def report(self) -> dict[str, float]:
        return {**super().report(), **{name: float(x) for name, x in self.totals().items()}}

    def last_lines(self) -> Iterable[str]:
        yield from super().last_lines()
        totals = self.totals()
        yield (
            f"Frames: {totals['frames']:,} trained; {totals['frames_generated']:,} generated, "
            f"{totals['frames_dropped']:,} dropped, {totals['frames_lost']:,} lost with a learner, "
            f"{totals['frames_waiting']:,} left over."
        )

    def close(self, *, finished: bool) -> None:
        self._actor_feed.close(finished=finished)
