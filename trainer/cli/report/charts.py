"""Line charts as SVG within a page.

The page's style colors axes and text for light and dark. The runs have colors that the
color-blind can tell apart, on white and on black. No TensorFlow.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from trainer.cli.report.markup import fill

# Okabe and Ito's without black and yellow, which vanish on one background; then some of Tol's.
_COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#a03a68",
    "#6a5acd", "#999933",
)  # fmt: skip

_WIDTH = 520
_HEIGHT = 300
_LEFT = 58
_RIGHT = 14
_TOP = 12
_BOTTOM = 34
_TICKS = 6
_MOST_POINTS = 400
_MAX_MARKED = 60
"""A line of at most so many points marks each of them."""
_LOG_RATIO = 1000
"""Positive values whose largest is so many times the smallest get a logarithmic scale."""


Curve: TypeAlias = Sequence[tuple[float, float]]
"""Steps in ascending order, and values, which may be NaN or infinite."""


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        label: its name.
        color: its color.
        points: its points.
        is_faint: whether it is drawn dashed, in the background.
    """

    label: str
    color: str
    points: Curve
    is_faint: bool = False


@dataclass(frozen=True)
class _Scale:
    """Maps values to coordinates in pixels."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            math.log10(x) if self.is_log else x for x in (self.low, self.high, value)
        )
        return self.begin + (self.end - self.begin) * ((value - low) / (high - low))

    def ticks(self) -> list[float]:
        if not self.is_log:
            return ticks(self.low, self.high, _TICKS)
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        return [
            10.0**power
            for power in range(first, last + 1, max(1, math.ceil((last - first) / _TICKS)))
        ]


def colors_of(count: int) -> list[str]:
    """Return a color for each run: distinct ones, or hues if there are too few of them."""
    if count <= len(_COLORS):
        return list(_COLORS[:count])
    hues = [colorsys.hls_to_rgb(number / count, 0.45, 0.6) for number in range(count)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hue) for hue in hues]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return about `most` round numbers from `low` to `high`.

    Their distance is 1, 2 or 5 times a power of ten.
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Return a number as text at an axis: 0.001, 250, 20k, 3M, 1e-06."""
    for unit, factor, least in (("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if least <= abs(value) < 1e9:
            return f"{value / factor:g}{unit}"
    return f"{value:.4g}"


def line_chart(title: str, lines: Sequence[Line]) -> str:
    """Return a chart, or an empty string if it has no point.

    NaN and infinite values interrupt their line.

    Args:
        title: its title.
        lines: what it shows.
    """
    finite = [
        (step, value) for line in lines for step, value in line.points if math.isfinite(value)
    ]
    if not finite:
        return ""
    x_scale = _Scale(0, max(1.0, *(x for x, _ in finite)), _LEFT, _WIDTH - _RIGHT)
    values = [value for _, value in finite]
    is_log = min(values) > 0 and max(values) / min(values) >= _LOG_RATIO
    low, high = (min(values), max(values)) if is_log else _padded(min(values), max(values))
    y_scale = _Scale(low, high, _HEIGHT - _BOTTOM, _TOP, is_log)
    polylines = "".join(
        _line(line, x_scale, y_scale) for line in sorted(lines, key=lambda line: not line.is_faint)
    )
    return fill(
        "chart",
        name=escape(title),
        note=" (logarithmic)" if is_log else "",
        width=_WIDTH,
        height=_HEIGHT,
        axes=_ticks(x_scale, y_scale),
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
        step_y=_HEIGHT - 3,
        lines=polylines,
    )


def _ticks(x_scale: _Scale, y_scale: _Scale) -> str:
    """Return the grid, and the numbers at the axes."""
    parts = []
    for value in y_scale.ticks():
        y = f"{y_scale(value):.1f}"
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y}" dy=".35em" text-anchor="end">'
            f"{tick_label(value)}</text>"
        )
    bottom = _HEIGHT - _BOTTOM
    for value in filter(float.is_integer, map(float, x_scale.ticks())):
        x = f"{x_scale(value):.1f}"
        parts.append(
            f'<path class="tickmark" d="M{x} {bottom}v4"/>'
            f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">'
            f"{tick_label(value)}</text>"
        )
    return "".join(parts)


def _line(line: Line, x_scale: _Scale, y_scale: _Scale) -> str:
    parts = []
    style = 'class="faint"' if line.is_faint else 'class="line"'
    points = thinned(line.points)
    for piece in _pieces(points):
        coordinates = " ".join(f"{x_scale(step):.1f},{y_scale(value):.1f}" for step, value in piece)
        parts.append(f'<polyline {style} stroke="{line.color}" points="{coordinates}"/>')
    if len(points) <= _MAX_MARKED:
        radius = 1.5 if line.is_faint else 2.5
        parts += [
            f'<circle fill="{line.color}" cx="{x_scale(step):.1f}" cy="{y_scale(value):.1f}" '
            f'r="{radius}">'
            f"<title>{escape(line.label)}: {value:.6g} at step {step:.10g}</title></circle>"
            for step, value in points
            if math.isfinite(value)
        ]
    return f"<g><title>{escape(line.label)}</title>{''.join(parts)}</g>"


def thinned(points: Curve) -> Curve:
    """Return at most as many points as a screen shows.

    Of many points it keeps the smallest and the largest in each of equal parts.
    """
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(len(points) / (_MOST_POINTS // 2))
    kept: dict[float, float] = {}
    for first in range(0, len(points), size):
        part = points[first : first + size]
        finite = [point for point in part if math.isfinite(point[1])]
        # It interrupts the line.
        kept |= dict([point for point in part if not math.isfinite(point[1])][:1])
        kept |= dict(choose(finite, key=lambda point: point[1]) for choose in (min, max) if finite)
    return sorted({**kept, **dict(points[-1:])}.items())


def _pieces(points: Curve) -> Iterable[Curve]:
    """Yield the points between those that are not finite."""
    piece: list[tuple[float, float]] = []
    for step, value in points:
        if math.isfinite(value):
            piece.append((step, value))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _padded(low: float, high: float) -> tuple[float, float]:
    """Add some room, but not below zero if no value is negative."""
    room = (high - low) / 20 or abs(low) / 10 or 1.0
    return max(0.0, low - room) if low >= 0 else low - room, high + room
