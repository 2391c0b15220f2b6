"""The curves of a run, read from where the last reading has ended. No TensorFlow.

A position in the files is a text for whoever asks again: for each file the offset of the first line
that was not read and a checksum of what stands before it, so that a file that a continuation has
cut shows it.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter, lt
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from trainer.files import MAX_LINE_BYTES, regular_file
from trainer.runs.recorded_metrics import FILES, NO_METRIC, parse_line

MOST_POINTS = 2000
"""About so many points of a curve are sent at once."""

_BUFFERED = 8
"""A curve is thinned when it has so many times the points that are sent."""
_CHECKED_BYTES = 64
_POSITION = re.compile(r"(\d{1,15})-(\d{1,10})_(\d{1,15})-(\d{1,10})")
_DIGITS = 6

_STEP, _VALUE = itemgetter(0), itemgetter(1)

_Point: TypeAlias = tuple[int, float]
"""Step and value."""


@dataclass
class _Reading:
    """What one reading gathers.

    Attributes:
        most: about how many points of a curve are kept.
        problems: what could not be read, one line each.
        curves: the points of each curve by split and metric.
        num_lines: how many lines there were since all curves were thinned.
    """

    most: int
    problems: list[str] = field(default_factory=list)
    curves: dict[str, dict[str, list[_Point]]] = field(default_factory=dict)
    num_lines: int = 0


def read_series(path: Path, position: str = "0", most: int = MOST_POINTS) -> dict[str, Any]:
    """Return the points of all curves after a position, as the page takes them.

    Args:
        path: the run directory.
        position: the `offset` of the last answer; `0`: the beginning.
        most: about how many points of a curve are returned; of more, the smallest and the largest
            in each of equal spans of steps.

    Returns:
        `offset`: the position after them; `reset`: whether the files are not those of `position`
        any more, so that the points are all there are; `points`: `step` and `value` of each curve
        by `<split>/<metric>`, ascending by step; `problems`: what cannot be read.
    """
    begins = _parse(position)
    reading = _Reading(most)
    with ExitStack() as stack:
        files = [_open(path / name, stack, reading.problems) for name in FILES]
        is_same = all(map(_is_at, files, begins))
        offsets = [offset if is_same else 0 for offset, _ in begins]
        ends = [*map(partial(_read_file, reading), FILES, files, offsets)]
        marks = [f"{end}-{_checksum(file, end)}" for file, end in zip(files, ends, strict=True)]
    return {
        "offset": "_".join(marks),
        "reset": not is_same,
        "points": {
            f"{split}/{name}": _columns(_settled(points, most))
            for split, curves in sorted(reading.curves.items())
            for name, points in sorted(curves.items())
        },
        "problems": reading.problems,
    }


def thin(points: Sequence[_Point], most: int) -> Sequence[_Point]:
    """Return about `most` of many points: first, last, smallest and largest of equal spans.

    Args:
        points: ascending by step; a value that is not finite interrupts the curve, and one of a
            span is kept.
        most: how many.
    """
    if len(points) <= most:
        return points
    steps = list(map(_STEP, points))
    num_spans = max(1, (most - 2) // 2)
    kept = [points[0]]
    begin = 1
    for number in range(1, num_spans + 1):
        edge = steps[0] + number * (steps[-1] - steps[0]) / num_spans
        end = bisect_left(steps, edge, begin)
        if end > begin:
            kept += _extremes(points[begin:end])
        begin = max(begin, end)
    return [*kept, *_extremes(points[begin:-1]), points[-1]]


def _extremes(span: Sequence[_Point]) -> list[_Point]:
    """Return the smallest and the largest point of a span, and one that is not finite."""
    broken: list[_Point] = []
    if not math.isfinite(sum(map(_VALUE, span))):  # the usual case is quick
        broken = [point for point in span if not math.isfinite(point[1])][:1]
        span = [point for point in span if math.isfinite(point[1])]
    ends = [min(span, key=_VALUE), max(span, key=_VALUE)] if span else []
    return sorted({*broken, *ends}, key=_STEP)


def _parse(position: str) -> list[tuple[int, int]]:
    """Return offset and checksum for each file; what is no position is the start."""
    match = _POSITION.fullmatch(position)
    numbers = [*map(int, match.groups())] if match else [0, 0, 0, 0]
    return [(numbers[0], numbers[1]), (numbers[2], numbers[3])]


def _open(path: Path, stack: ExitStack, problems: list[str]) -> BinaryIO | None:
    try:
        return stack.enter_context(open(path, "rb", opener=regular_file))
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def _is_at(file: BinaryIO | None, begin: tuple[int, int]) -> bool:
    return begin[0] == 0 or (file is not None and _checksum(file, begin[0]) == begin[1])


def _checksum(file: BinaryIO | None, offset: int) -> int:
    """Return the checksum of the bytes before an offset; -1: there are not so many."""
    if file is None or offset == 0:
        return 0
    if offset > os.fstat(file.fileno()).st_size:
        return -1
    begin = max(0, offset - _CHECKED_BYTES)
    file.seek(begin)
    return zlib.crc32(file.read(offset - begin))


def _read_file(reading: _Reading, name: str, file: BinaryIO | None, offset: int) -> int:
    """Add the whole lines after an offset to a reading; return the offset after them."""
    if file is None:
        return 0
    num_damaged = 0
    file.seek(offset)
    for text in _whole_lines(file):
        offset += len(text)
        if line := parse_line(text):
            _add_line(line, reading)
        elif text.strip():
            num_damaged += 1
    if num_damaged:
        lines = "1 line" if num_damaged == 1 else f"{num_damaged} lines"
        reading.problems.append(f"{name}: {lines} cannot be read")
    return offset


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without the last one if it is not complete; parts of a huge one."""
    while text := file.readline(MAX_LINE_BYTES):
        if not text.endswith(b"\n") and len(text) < MAX_LINE_BYTES:
            return
        yield text


def _add_line(line: dict[str, Any], reading: _Reading) -> None:
    step, split = line.pop("step"), line.pop("split")
    curves = reading.curves.setdefault(split, {})
    for key, value in line.items():
        if value is not None:
            if key in curves:
                curves[key].append((step, value))
            elif key not in NO_METRIC:
                curves[key] = [(step, value)]
    reading.num_lines += 1
    if reading.num_lines > _BUFFERED * reading.most:
        reading.num_lines = 0
        for split_curves in reading.curves.values():
            for key, points in split_curves.items():
                split_curves[key] = _settled(points, reading.most)


def _settled(points: Sequence[_Point], most: int) -> list[_Point]:
    """Return points in the order of steps, thinned; of a step the last one counts."""
    steps = list(map(_STEP, points))
    if not all(map(lt, steps, steps[1:])):
        points = sorted({point[0]: point for point in points}.values(), key=_STEP)
    return list(thin(points, most))


def _columns(points: Sequence[_Point]) -> dict[str, list[Any]]:
    return {
        "step": [step for step, _ in points],
        "value": [_rounded(value) if math.isfinite(value) else None for _, value in points],
    }


def _rounded(value: float) -> float:
    """Return a number with the digits that a chart shows."""
    return float(f"{value:.{_DIGITS}g}")
