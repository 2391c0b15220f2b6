"""Lines and numbers as text for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence


def printable(text: str) -> str:
    r"""Return a text of another user's as it may reach a terminal: `\x1b` for an escape.

    What is no character to be seen, such as a line break, is written as Python does.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines, each `printable`."""
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest word, or an empty string."""
    names = {name.lower(): name for name in words}
    near = difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.6)
    # Swapped letters are the commonest slip, but difflib prefers missing ones: modle is model, not
    # mode.
    near.sort(key=lambda other: sorted(other) != sorted(word.lower()))
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def format_metric(value: float) -> str:
    """Return a metric with four decimals, or three digits if it is very small or large."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.3g}"


def format_bytes(size: float) -> str:
    """Return a number of bytes as 512 B, 1.5 kB, 11.1 MB or 2.3 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.99995 * factor:  # 999,950 B would be 1000.0 kB
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"


def format_duration(secs: float) -> str:
    """Return a duration as 12 s, 3:05 min or 1:02:03 h."""
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d} h"
    return f"{minutes}:{seconds:02d} min" if minutes else f"{seconds} s"


def without_classes(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without those of single classes, such as `precision/cat`."""
    return {name: value for name, value in metrics.items() if "/" not in name}


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or else its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def short_keys(keys: Sequence[str]) -> list[str]:
    """Return the last parts of dotted keys, or the whole key where those are not unique."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]


def named_values(name: str, values: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Return a metric's values as `<name>/<one of names>`, as a command line accepts it.

    They have numbers if two of the names would be the same, or if there are none.
    """
    keys = [re.sub(r"[^\w.-]+", "_", each) for each in names]
    if len(set(keys)) != len(values):
        keys = [str(number) for number in range(len(values))]
    return {f"{name}/{key}": value for key, value in zip(keys, values, strict=True)}
