"""What a writer is asked to show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Writer:
    """Receives what is reported. What a writer cannot show it passes over.

    Made when the run's position is known: what an earlier attempt wrote past it does not count. Splits are `train` and `test`; a step
    is the number of updates made.
    """

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Shows the metrics of a split."""

    def images(self, split: str, step: int, name: str, images: np.ndarray) -> None:
        """Shows images: [N, H, W, C] of uint8, with C of 1 (grey), 3 or 4."""

    def histogram(self, split: str, step: int, name: str, values: np.ndarray) -> None:
        """Shows how values of any shape are distributed."""

    def text(self, name: str, text: str) -> None:
        """Shows a text of the whole run, in Markdown; told anew when the run goes on."""

    def graph(self, graph_def: bytes) -> None:
        """Shows a graph, a serialized GraphDef; told anew when the run goes on."""

    def flush(self) -> None:
        """Brings what was written so far to the disk."""

    def close(self) -> None:
        """Brings everything to the disk, and ends the writing."""
