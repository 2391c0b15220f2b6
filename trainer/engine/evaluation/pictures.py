"""Pictures of some examples of an evaluated split, with what is predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, ExtraMetrics
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.process_group import ProcessGroup
from trainer.files import write_atomically
from trainer.protocols import Batch, Dataset, Split
from trainer.summaries import figures

Draw: TypeAlias = Callable[
    [Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, np.ndarray]
]
"""Draws examples, name -> [n, ...] as the model receives them, with what is predicted of them.

Returns name -> [H, W, 3] uint8.
"""


class Pictures(ExtraMetrics):
    """Draws examples with their predictions, in the chief; returns no metrics.

    Args:
        draw: draws them.
        dataset: turns them into what the model sees.
        split: these examples.
        predictor: predicts them.
        process_group: the processes that predict together.
        run_dir: the run directory, for the pictures.
    """

    def __init__(
        self,
        draw: Draw,
        dataset: Dataset,
        split: Split,
        predictor: Predictor,
        process_group: ProcessGroup,
        run_dir: Path,
    ) -> None:
        super().__init__(predictor, process_group)
        self._draw = draw
        self._dataset = dataset
        self._split = split
        self._run_dir = run_dir
        self.reset()

    def reset(self) -> None:
        """Forget all predictions."""
        self._blocks: list[Mapping[str, np.ndarray]] = []

    def update(self, block: Mapping[str, np.ndarray]) -> None:
        """Add predictions."""
        self._blocks.append(block)

    def results(self, step: int) -> Evaluation:
        """Draw and write the pictures."""
        if not self._blocks:
            return Evaluation({})
        predictions = {
            name: np.concatenate([block[name] for block in self._blocks])
            for name in self._blocks[0]
        }
        drawn = self._draw(self._examples(predictions["id"]), predictions)
        for name, picture in drawn.items():
            write_atomically(self._run_dir / f"{name}.png", figures.png(picture))
        return Evaluation({}, {name: picture[None] for name, picture in drawn.items()})

    def _examples(self, ids: np.ndarray) -> Batch:
        """Return the examples with these numbers, as the model receives them."""
        with tf.device("CPU:0"):
            batch = self._split.fetch(tf.constant(ids, tf.int64))
            transformed = self._dataset.transform(batch, None)
        return {name: np.asarray(value) for name, value in transformed.items()}
