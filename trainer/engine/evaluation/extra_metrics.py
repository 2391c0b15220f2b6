"""Metrics and figures of the test split besides the task's own metrics."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.process_group import ProcessGroup

_BLOCK_ROWS = 1024


class ExtraMetrics(ABC):
    """Computes metrics in the chief, from rows that all processes predict together.

    Attributes:
        images: the images of the last evaluation, in the chief: name -> [N, H, W, 3] uint8.
        texts: the texts of the last evaluation, in the chief, by name.

    Args:
        predictor: predicts the rows.
        process_group: the processes that predict together.
    """

    def __init__(self, predictor: Predictor, process_group: ProcessGroup) -> None:
        self._predictor = predictor
        self._process_group = process_group
        self.images: Mapping[str, np.ndarray] = {}
        self.texts: Mapping[str, Sequence[str]] = {}

    def compute(
        self, step: int, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> dict[str, float]:
        """Return the values of the metrics, in every process; collective.

        Args:
            step: number of updates made.
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested of some process.
        """
        self.reset()
        chunks = self._predictor.predict(0, stop_requested, enter)
        for block in blocks(chunks, _BLOCK_ROWS):
            if self._process_group.is_chief:
                self.update(block)
        text = json.dumps(self.results(step) if self._process_group.is_chief else {})
        values: dict[str, float] = json.loads(self._process_group.broadcast_text_from_chief(text))
        return values

    @abstractmethod
    def reset(self) -> None:
        """Forget all rows."""

    @abstractmethod
    def update(self, block: Mapping[str, np.ndarray]) -> None:
        """Add rows, name -> [n, ...]; in the chief."""

    @abstractmethod
    def results(self, step: int) -> dict[str, float]:
        """Return the values, draw the images, and write files; in the chief."""


def blocks(
    chunks: Iterable[Mapping[str, np.ndarray]], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of all chunks in blocks of `size` rows.

    The length of a chunk depends on the clock, and no bit of a metric may. Rows of weight 0, which
    are examples that could not be read, are left out.

    Args:
        chunks: name -> [n, ...], with a `weight`.
        size: rows in each block but the last.
    """
    pending: dict[str, np.ndarray] = {}
    for chunk in chunks:
        is_valid = chunk["weight"] > 0
        rows = {name: values[is_valid] for name, values in chunk.items()}
        if pending:
            rows = {name: np.concatenate([pending[name], values]) for name, values in rows.items()}
        pending = rows
        while len(pending["weight"]) >= size:
            yield {name: values[:size] for name, values in pending.items()}
            pending = {name: values[size:] for name, values in pending.items()}
    if pending and len(pending["weight"]):
        yield pending
