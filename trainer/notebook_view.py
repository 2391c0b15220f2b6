"""Runs as HTML for notebooks: progress, metrics, curves and settings. No TensorFlow.

No script and no style sheet: the colors of text are those of the notebook, light or dark.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from trainer.cli.page.series import read_series
from trainer.errors import DamagedError
from trainer.runs import provenance, run_summary
from trainer.runs.run_summary import RunSummary
from trainer.text import format_duration, format_metric, without_classes

Curves: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[int, float]]]
"""The points of each metric, step and value, by split and name."""

_DRAW_SECS = 1.0
_DIRECTORY = re.compile(r"(?:Run directory: |.* -> )(\S.*)")
_COLORS = {"train": "#4c78a8", "validation": "#54a24b", "test": "#f58518"}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 320, 170, 52, 312, 24, 148
_MAX_POINTS = 400
_COMMAND_KEYS = {"runs_dir", "resume", "mode"}


def run_html(summary: RunSummary, curves: Curves) -> str:
    """Return what a run is, how far it is, its metrics, its curves, and what was set."""
    primary = summary.directions.primary
    metrics = dict.fromkeys(["loss", primary])
    panels = [_panel(name, curves, summary.total) for name in metrics]
    settings = _settings(summary.path)
    parts = [
        f"<b>{escape(summary.path.name)}</b> &nbsp; {escape(_position(summary))}",
        _bar(summary),
        escape(_metrics(summary)),
        "".join(panels),
        f"Overrides: <code>{escape(' '.join(settings))}</code>" if settings else "",
        f"<b>{escape(summary.why)}</b>" if summary.why else "",
    ]
    return "".join(f"<div style='margin:2px 0'>{part}</div>" for part in parts if part)


def _position(summary: RunSummary) -> str:
    parts = [str(summary.state), f"step {summary.step:,}"]
    if summary.total:
        parts[-1] += f" of {summary.total:,}"
    if summary.secs is not None:
        parts.append(format_duration(summary.secs))
    if summary.eta_secs is not None:
        parts.append(f"about {format_duration(summary.eta_secs)} left")
    return ", ".join(parts)


def _bar(summary: RunSummary) -> str:
    if not summary.total:
        return ""
    percent = 100 * min(1.0, summary.step / summary.total)
    return (
        "<div style='width:644px;max-width:100%;background:#8884;height:6px'>"
        f"<div style='width:{percent:.1f}%;background:{_COLORS['train']};height:6px'></div></div>"
    )


def _metrics(summary: RunSummary) -> str:
    """Return `test loss 0.0245, accuracy 0.9920; best accuracy 0.9930 at step 312`."""
    values = without_classes(summary.metrics)
    text = ", ".join(f"{name} {format_metric(value)}" for name, value in values.items())
    text = f"{summary.split} {text}" if text else ""
    if summary.best is not None:
        step, value = summary.best
        text += f"; best {summary.directions.primary} {format_metric(value)} at step {step:,}"
    return text


def _settings(path: Path) -> list[str]:
    """Return what the commands have set, as overrides; what concerns one command is left out."""
    try:
        record = provenance.read(path)
    except DamagedError:
        return []
    pairs = (item.lstrip("+~").partition("=")[::2] for item in record.get("overrides", ()))
    values = {**dict(pairs), **provenance.changed_values(record)}
    return [
        f"{key}={value}"
        for key, value in values.items()
        if key not in _COMMAND_KEYS and value not in ("null", None)
    ]


def _panel(metric: str, curves: Curves, total: int | None) -> str:
    """Return an SVG picture of a metric over the steps, with a line for each split."""
    lines = {
        split: [(step, value) for step, value in points if math.isfinite(value)]
        for (split, name), points in curves.items()
        if name == metric and split in _COLORS
    }
    points = [*chain.from_iterable(lines.values())]
    if not points:
        return ""
    last = max(total or 1, *(step for step, _ in points))
    low, high = min(value for _, value in points), max(value for _, value in points)
    legend = " ".join(
        f"<tspan fill='{_COLORS[split]}'>{split}</tspan>" for split in lines if lines[split]
    )
    labels = [
        (_LEFT, 14, "start", f"<tspan font-weight='bold'>{escape(metric)}</tspan> {legend}"),
        (_LEFT - 4, _TOP + 8, "end", format_metric(high)),
        (_LEFT - 4, _BOTTOM, "end", format_metric(low)),
        (_RIGHT, _HEIGHT - 6, "end", f"step {last:,}"),
    ]
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' fill='currentColor' font-size='11' "
        "font-family='sans-serif'>"
        f"<path d='M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}' fill='none' stroke='#8888'/>"
        + "".join(_line(split, lines[split], last, low, high) for split in lines)
        + "".join(
            f"<text x='{x}' y='{y}' text-anchor='{anchor}'>{text}</text>"
            for x, y, anchor, text in labels
        )
        + "</svg>"
    )


def _line(
    split: str, points: Sequence[tuple[int, float]], last: int, low: float, high: float
) -> str:
    stride = -(-len(points) // _MAX_POINTS) or 1
    across = (_RIGHT - _LEFT) / last
    up = (_BOTTOM - _TOP) / ((high - low) or 1.0)
    places = [
        f"{_LEFT + step * across:.1f},{_BOTTOM - (value - low) * up:.1f}"
        for step, value in [*points[:-1:stride], *points[-1:]]
    ]
    color = _COLORS[split]
    dots = [place.split(",") for place in places] if len(places) < 40 else []
    return f"<polyline points='{' '.join(places)}' fill='none' stroke='{color}'/>" + "".join(
        f"<circle cx='{x}' cy='{y}' r='2' fill='{color}'/>" for x, y in dots
    )


class LiveView:
    """The view of a run that trains, drawn anew about every second.

    Args:
        show: replaces the HTML that is shown; None: nothing is shown.
        clock: returns seconds.
    """

    def __init__(
        self, show: Callable[[str], None] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._clock = clock
        self._drawn_at = -math.inf
        self._directory: Path | None = None
        self._position = "0"
        self._curves: dict[tuple[str, str], list[tuple[int, float]]] = {}

    def read(self, line: str) -> None:
        """Take the directory from a line of the command that names it."""
        if match := _DIRECTORY.fullmatch(line):
            self._directory = Path(match[1])

    def draw(self, *, at_once: bool = False) -> None:
        """Draw the run, if it is known and was drawn a second ago."""
        now = self._clock()
        is_due = at_once or now >= self._drawn_at + _DRAW_SECS
        if self._show is None or self._directory is None or not is_due:
            return
        self._drawn_at = now
        self._read_curves(self._directory)
        summary = run_summary.summarize(self._directory)
        steps = [points[-1][0] for points in self._curves.values()]
        summary = replace(summary, step=max([summary.step, *steps]))
        self._show(run_html(summary, self._curves))

    def _read_curves(self, directory: Path) -> None:
        """Add the points that were written since the last reading."""
        series = read_series(directory, self._position)
        self._position = series["offset"]
        if series["reset"]:  # a continuation has cut a file
            self._curves.clear()
        for name, columns in series["points"].items():
            split, _, metric = name.partition("/")
            points = self._curves.setdefault((split, metric), [])
            for step, value in zip(columns["step"], columns["value"], strict=True):
                if value is not None:
                    self._add(points, step, value)

    def _add(self, points: list[tuple[int, float]], step: int, value: float) -> None:
        """Add a point in the place of those that are reported again."""
        while points and points[-1][0] >= step:
            points.pop()
        points.append((step, value))
