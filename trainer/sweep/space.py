"""The values that a search may choose: ranges in Hydra's sweep syntax, checked and sampled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from trainer.errors import ConfigError

_SIGNIFICANT_DIGITS = 4
"""Of a sampled number: enough to search, few enough to read."""


@dataclass(frozen=True)
class Choice:
    """Values without an order, as on a command line: `a,b`, `choice(a,b)`."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"choice({','.join(self.values)})"

    @property
    def values_to_check(self) -> tuple[str, ...]:
        """The values that are composed before a search starts: all."""
        return self.values

    @property
    def size(self) -> float:
        return len(self.values)

    def sample(self, random: Random) -> str:
        """Return a value from the uniform distribution."""
        return self.values[int(random.random() * len(self.values))]


@dataclass(frozen=True)
class NumberRange:
    """Numbers from low to high: `interval(0,1)`, `int(interval(1,9))`, `range(1,10,2)`.

    Attributes:
        step: distance of neighbors; None for a continuous range of floats.
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
    def values_to_check(self) -> tuple[str, ...]:
        """The values that are composed before a search starts: both bounds.

        Of whole numbers also the second, which fails where a number must be divisible by
        another, such as a batch size.
        """
        inner = [self.low + self.step] if self.step else []
        return tuple(dict.fromkeys(map(self.format, [self.low, *inner, self.high])))

    @property
    def size(self) -> float:
        """Number of values; inf for a continuous range."""
        return (self.high - self.low) // self.step + 1 if self.step else math.inf

    def sample(self, random: Random) -> str:
        """Return a number from the uniform or log-uniform distribution."""
        fraction = random.random()
        if self.step and not self.log:
            return self.format(self.low + self.step * int(fraction * self.size))
        margin = 0.5 if self.step else 0.0  # so that a bound is as likely as its neighbor
        low, high = (
            math.log(bound) if self.log else bound
            for bound in (self.low - margin, self.high + margin)
        )
        value = low + fraction * (high - low)
        return self.format(math.exp(value) if self.log else value)

    def format(self, value: float) -> str:
        """Return the nearest whole number, or a float of few digits, as on a command line.

        It is within the bounds, and equal numbers give equal texts.
        """
        if self.step:
            value = round(value)
        else:
            scale = abs(value) if self.log else self.high - self.low
            value = round(value, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(scale)))
        return repr(min(max(value, self.low), self.high))


ParameterRange = Choice | NumberRange


@dataclass(frozen=True)
class SearchSpace:
    """The points that a search may choose."""

    fixed: Sequence[str]
    ranges: Mapping[str, ParameterRange]

    @property
    def size(self) -> float:
        """Number of points; inf if a range is continuous."""
        return math.prod(values.size for values in self.ranges.values())

    def overrides(self, varied: Mapping[str, str]) -> list[str]:
        return [*self.fixed, *(f"{key}={value}" for key, value in varied.items())]

    def sample(self, random: Random) -> dict[str, str]:
        """Return a random value for each key."""
        return {key: values.sample(random) for key, values in self.ranges.items()}

    def points_to_check(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield each key with each value to check, the other keys at their first value."""
        first = {key: values.values_to_check[0] for key, values in self.ranges.items()}
        for key, values in self.ranges.items():
            for value in values.values_to_check:
                yield key, {**first, key: value}


def parse_search_space(parsed: Sequence[Override]) -> SearchSpace:
    """Return the search space of a command line.

    Raises:
        ConfigError: with all problems: ranges without a value, or that cannot be sampled.
    """
    problems = [problem for override in parsed if (problem := _range_problem(override))]
    if problems:
        raise ConfigError(*problems)
    ranges = {
        override.get_key_element(): _parse_range(override)
        for override in parsed
        if override.is_sweep_override()
    }
    fixed = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
    return SearchSpace(fixed, ranges)


def _range_problem(override: Override) -> str | None:
    value: Any = override.value()
    if override.is_discrete_sweep() and next(override.sweep_string_iterator(), None) is None:
        return f"{override.input_line} matches nothing; list values"
    if not isinstance(value, IntervalSweep | RangeSweep):
        return None
    key = f"{override.get_key_element()} ({(override.input_line or '').partition('=')[2]})"
    if unknown := value.tags - {"log"}:
        return (
            f"{key} must be tagged log, or not at all, got {', '.join(sorted(unknown))}; "
            "write tag(log,interval(1e-4,1e-1))"
        )
    if isinstance(value, RangeSweep):
        if not value.tags:
            return None
        return (
            f"{key} must be an interval to be sampled on a log scale; "
            "write tag(log,int(interval(1,100)))"
        )
    low = float(value.start or 0)
    high = float(value.end or 0)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return f"{key} must have finite bounds, the smaller first; write interval(low,high)"
    if value.tags and low <= 0:
        return f"{key} must be > 0 to be sampled on a log scale; raise its lower bound"
    return None


def _parse_range(override: Override) -> ParameterRange:
    value: Any = override.value()
    if isinstance(value, IntervalSweep):
        low = cast(float, value.start)
        high = cast(float, value.end)
        step = 1 if {type(low), type(high)} == {int} else None
        return NumberRange(low, high, step, log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(numbers := value.range(), range):
        return NumberRange(min(numbers), max(numbers), abs(numbers.step))
    return Choice(tuple(dict.fromkeys(override.sweep_string_iterator())))
