"""What every contender trains, and what its records contain. No TensorFlow."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Job:
    """A training of the tutorial's CNN with RMSprop, in whole epochs.

    Attributes:
        data: an .npz file with `x_train` and `y_train` in MNIST's layout.
        batch_size: examples in a step, of all processes together.
        save_every: steps between two checkpoints; None: one at the end of each epoch.
    """

    folder: str
    data: str
    epochs: int
    steps_per_epoch: int
    batch_size: int
    save_every: int | None

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def checkpoints(self) -> str:
        return f"{self.folder}/checkpoints"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))


def replay(job: Job, processes: int) -> tuple[int, int]:
    """Read what the steps of a run have recorded; the last record of a step is what counts.

    Returns:
        How many steps were computed, each as often as it was, and how many examples the steps that
        count take too often: as many as they leave out.
    """
    record = np.dtype([("step", np.int64), ("ids", np.int64, job.batch_size // processes)])
    counts = np.zeros(job.steps_per_epoch * job.batch_size, np.int64)
    computed = 0
    for rank in range(processes):
        last: dict[int, np.ndarray] = {}
        for file in sorted(Path(job.folder).glob(f"steps-{rank}-*")):
            content = file.read_bytes()
            whole = len(content) // record.itemsize  # a kill may have cut the last one off
            records = np.frombuffer(content, record, whole)
            last |= {int(step): ids for step, ids in records}
            computed += whole if rank == 0 else 0
        for step in range(job.steps):
            np.add.at(counts, last.get(step, []), 1)
    return computed, int(np.maximum(counts - job.epochs, 0).sum())
