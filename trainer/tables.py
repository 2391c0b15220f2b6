"""Tables and numbers as text for people. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def aligned(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Makes a line of each row, the columns below one another.

    Args:
        rows: cells of text, equally many in each row.
        align: for each column `<` (text) or `>` (numbers).
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip() for row in rows]


def number(value: float) -> str:
    """Words a metric: four decimals, or three digits where those would be zeros, or too many."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.3g}"


def duration(secs: float) -> str:
    """Words a duration: 0:12, 3:05, 1:02:03."""
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def overall(metrics: Mapping[str, float]) -> dict[str, float]:
    """Gives the metrics that a line has room for: not those of single classes, `precision/cat`."""
    return {name: value for name, value in metrics.items() if "/" not in name}
