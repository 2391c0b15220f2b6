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
from typing import Any

from trainer.cli.page.series import read_series
from trainer.errors import DamagedError
from trainer.runs import provenance
from trainer.runs.directory import has_run
from trainer.runs.run_summary import RunSummary, summarize
from trainer.runs.status import State
from trainer.text import format_duration, format_metric, without_classes

_DRAW_SECS = 1.0
_DRAW_SHARE = 0.1
"""The most of the time that is spent on reading and drawing."""
_DIRECTORY = re.compile(r"(?:Run directory: |.* -> )(\S.*)")
_COLORS = {"train": "#4c78a8", "validation": "#54a24b", "test": "#f58518"}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 320, 170, 52, 312, 24, 148
_MAX_POINTS = 400
_COMMAND_KEYS = {"runs_dir", "resume", "mode"}


def run_html(path: Path) -> str:
    """Return what a run is, how far it is, its metrics, its curves, and what was set."""
    summary = summarize(path)
    curves = read_series(path, most=_MAX_POINTS)["points"]
    if summary.state is State.RUNNING:
        steps = [curve["step"][-1] for curve in curves.values()]
        summary = replace(summary, step=max([summary.step, *steps]))
    metrics = dict.fromkeys(["loss", summary.directions.primary])
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


def _panel(metric: str, curves: Mapping[str, Any], total: int | None) -> str:
    """Return an SVG picture of a metric over the steps, with a line for each split."""
    lines = {
        split: [point for point in zip(*curve.values(), strict=True) if point[1] is not None]
        for split in _COLORS
        if (curve := curves.get(f"{split}/{metric}"))
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
    across = (_RIGHT - _LEFT) / last
    up = (_BOTTOM - _TOP) / ((high - low) or 1.0)
    places = [
        f"{_LEFT + step * across:.1f},{_BOTTOM - (value - low) * up:.1f}" for step, value in points
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
        self._due = -math.inf
        self._directory: Path | None = None

    def read(self, line: str) -> None:
        """Take the directory from a line of the command that names it."""
        # The user's code may print an arrow too.
        if (match := _DIRECTORY.fullmatch(line)) and has_run(Path(match[1])):
            self._directory = Path(match[1])

    def draw(self, *, at_once: bool = False) -> None:
        """Draw the run, if it is known and was drawn a second ago."""
        began = self._clock()
        if self._show and self._directory and (at_once or began >= self._due):
            self._show(run_html(self._directory))
            now = self._clock()
            self._due = max(began + _DRAW_SECS, now + (now - began) / _DRAW_SHARE)
