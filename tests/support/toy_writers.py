"""A writer that keeps what it is to show."""

from __future__ import annotations

from typing import Any

from trainer.summaries.writers.writer import Writer


class Shown(Writer):
    """Keeps images, histograms and texts by split, step and name."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, int, str], Any] = {}

    def images(self, split: str, step: int, name: str, images: Any) -> None:
        self.shown[split, step, name] = images

    histogram = texts = images
