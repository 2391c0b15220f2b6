"""What a sweep varies, in Hydra's own sweep syntax: lists of values, ranges and intervals. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from trainer.errors import ConfigError

_DIGITS = 4
"""Significant digits of a number that is drawn: enough to search, few enough to read."""


@dataclass(frozen=True)
class Choice:
    """Values without an order: `a,b`, `choice(a,b)`.

    Attributes:
        values: as they are written on a command line.
    """

    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"choice({','.join(self.values)})"

    @property
    def edges(self) -> tuple[str, ...]:
        """The values that are tried out before a search starts: all."""
        return self.values

    @property
    def size(self) -> float:
        """How many values there are."""
        return len(self.values)

    def draw(self, random: Random) -> str:
        """Draws a value, all alike."""
        return self.values[int(random.random() * len(self.values))]


@dataclass(frozen=True)
class Interval:
    """Numbers between two bounds, both included: `interval(0,1)`, `int(interval(1,9))`, `range(1,10,2)`.

    Attributes:
        low: the smallest.
        high: the largest.
        step: between neighbours; None: floats, without gaps.
        log: whether each order of magnitude is as likely as another, `tag(log,...)`.
    """

    low: float
    high: float
    step: int | None = None
    log: bool = False

    def __str__(self) -> str:
        if self.step not in (None, 1):
            return f"range({self.low},{int(self.high) + 1},{self.step})"
        text = f"interval({self.low},{self.high})"
        text = f"int({text})" if self.step else text
        return f"tag(log,{text})" if self.log else text

    @property
    def edges(self) -> tuple[str, ...]:
        """The values that are tried out before a search starts: both bounds, and the neighbour of one, which may not divide."""
        inner = [self.low + self.step] if self.step else []
        return tuple(dict.fromkeys(map(self.text, [self.low, *inner, self.high])))

    @property
    def size(self) -> float:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1 if self.step else math.inf

    def draw(self, random: Random) -> str:
        """Draws a value, all alike, or all orders of magnitude alike."""
        fraction = random.random()
        if self.step and not self.log:
            return self.text(self.low + self.step * int(fraction * self.size))
        margin = 0.5 if self.step else 0.0  # so that a bound is drawn as often as its neighbour
        low, high = (math.log(bound) if self.log else bound for bound in (self.low - margin, self.high + margin))
        value = low + fraction * (high - low)
        return self.text(math.exp(value) if self.log else value)

    def rounded(self, value: float) -> float:
        """Rounds a number to what is tried: a whole one, or one of few digits within the bounds."""
        if self.step:
            value = round(value)
        else:
            scale = abs(value) if self.log else self.high - self.low
            value = round(value, _DIGITS - 1 - math.floor(math.log10(scale)))
        return min(max(value, self.low), self.high)

    def text(self, value: float) -> str:
        """Writes a number as on a command line: the same number, the same text."""
        return repr(self.rounded(value))


Range = Choice | Interval


@dataclass(frozen=True)
class Space:
    """The points a sweep may have.

    Attributes:
        fixed: the overrides that all points share.
        ranges: what is varied: key -> the values it may take.
    """

    fixed: Sequence[str]
    ranges: Mapping[str, Range]

    @property
    def size(self) -> float:
        """How many points there are."""
        return math.prod(range_.size for range_ in self.ranges.values())

    def overrides(self, varied: Mapping[str, str]) -> list[str]:
        """Gives all overrides of a point."""
        return [*self.fixed, *(f"{key}={value}" for key, value in varied.items())]

    def draw(self, random: Random) -> dict[str, str]:
        """Draws a point."""
        return {key: range_.draw(random) for key, range_ in self.ranges.items()}

    def edges(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Gives each edge of each range with its key, the other keys at their first value."""
        first = {key: range_.edges[0] for key, range_ in self.ranges.items()}
        for key, range_ in self.ranges.items():
            for value in range_.edges:
                yield key, {**first, key: value}


def space_of(parsed: Sequence[Override]) -> Space:
    """Gives what overrides vary.

    Args:
        parsed: overrides, one for each key.

    Raises:
        ConfigError: ranges that hold no value, or that nothing can be drawn from; all of them.
    """
    if problems := [line for override in parsed if (line := _problem(override))]:
        raise ConfigError(*problems)
    ranges = {override.get_key_element(): _range(override) for override in parsed if override.is_sweep_override()}
    return Space([override.input_line or "" for override in parsed if not override.is_sweep_override()], ranges)


def _problem(override: Override) -> str | None:
    value: Any = override.value()
    if override.is_discrete_sweep() and next(override.sweep_string_iterator(), None) is None:
        return f"{override.input_line} matches nothing; list values"
    if not isinstance(value, IntervalSweep | RangeSweep):
        return None
    given = (override.input_line or "").partition("=")[2]
    what = f"{override.get_key_element()} ({given})"
    if unknown := value.tags - {"log"}:
        return f"{what} must be tagged log, or not at all, got {', '.join(sorted(unknown))}; write tag(log,interval(1e-4,1e-1))"
    if isinstance(value, RangeSweep):
        return f"{what} must be an interval to be drawn log; write tag(log,int(interval(1,100)))" if value.tags else None
    low, high = float(value.start or 0), float(value.end or 0)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return f"{what} must have finite bounds, the smaller first; write interval(low,high)"
    return f"{what} must be > 0 throughout to be drawn log; raise its lower bound" if value.tags and low <= 0 else None


def _range(override: Override) -> Range:
    value: Any = override.value()
    if isinstance(value, IntervalSweep):
        low, high = cast(float, value.start), cast(float, value.end)
        return Interval(low, high, 1 if {type(low), type(high)} == {int} else None, log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(numbers := value.range(), range):
        return Interval(min(numbers), max(numbers), abs(numbers.step))
    return Choice(tuple(dict.fromkeys(override.sweep_string_iterator())))
