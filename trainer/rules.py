"""A very small language for the range of a value, used by the schema and in the signatures of targets. No TensorFlow.

A target states the range of an option as `Annotated[float, "> 0"]`, a schema field as `key(1, "...", ">= 1")`:

    > 0             one bound;  also >=, <, <=
    >= 0, < 1       several bounds, all must hold
    max | min       one of these words
    each: a | b     every item of a list
    auto or >= 1    this word, or what follows
    exists          a path that exists; also `file`, `directory`
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BOUNDS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_PATHS = {
    "exists": (Path.exists, "no such file or directory"),
    "file": (Path.is_file, "no such file"),
    "directory": (Path.is_dir, "no such directory"),
}


def broken(value: Any, rule: str) -> str | None:
    """Says how `value` breaks `rule`, as the rest of a sentence, or None if it keeps it. None is always allowed."""
    if value is None:
        return None
    if rule.startswith("each: "):
        return next((problem for item in value if (problem := broken(item, rule[6:]))), None)
    if " or " in rule:
        word, rest = rule.split(" or ", 1)
        return None if value == word or (_is_number(value) and not broken(value, rest)) else f"must be {word} or {rest}"
    if rule in _PATHS:
        holds, problem = _PATHS[rule]
        return None if holds(Path(value).expanduser()) else problem
    if " | " in rule:
        words = rule.split(" | ")
        return None if value in words else f"must be one of {', '.join(words)}{did_you_mean(str(value), words)}"
    for bound in rule.split(", "):
        symbol, limit = bound.split()
        if not _is_number(value) or not _BOUNDS[symbol](value, float(limit)):
            return f"must be {rule.replace(', ', ' and ')}"
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Gives "; did you mean 'x'?" for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
