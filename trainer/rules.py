"""A very small language for the range of a value, used by the schema and in the signatures of targets. No TensorFlow.

A target states the range of an option as `Annotated[float, "> 0"]`, a schema field as `key(1, "...", ">= 1")`:

    > 0             one bound;  also >=, <, <=
    >= 0, < 1       several bounds, all must hold
    max | min       one of these words
    each: a | b     every item of a list
    auto or >= 1    this word (or one of several), or what follows
    exists          a path that exists; also `file`, `directory`, `checkpoint`

Here too are the two sentences that every check needs: how a broken rule and how an unknown key are told.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_BOUNDS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_PATHS = {
    "exists": (Path.exists, "no such file or directory"),
    "file": (Path.is_file, "no such file"),
    "directory": (Path.is_dir, "no such directory"),
    # A checkpoint is named by the common prefix of its files, which is no file itself.
    "checkpoint": (lambda path: path.exists() or Path(f"{path}.index").exists(), "no such run or checkpoint"),
}
_IS_BOUND = re.compile(r"(>=|<=|>|<) -?[\d.]+(e-?\d+)?")


def broken(value: Any, rule: str) -> str | None:
    """Says how `value` breaks `rule`, as the rest of a sentence, or None if it keeps it. None is always allowed."""
    if value is None:
        return None
    if rule.startswith("each: "):
        problems = (broken(item, rule.removeprefix("each: ")) for item in value)
        return next((problem.replace("must", "each item must", 1) for problem in problems if problem), None)
    if " or " in rule:
        text, rest = rule.split(" or ", 1)
        words = text.split(" | ")
        if value in words or (_is_number(value) and not broken(value, rest)):
            return None
        return f"must be {', '.join(words)} or {rest}{did_you_mean(str(value), words)}"
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
    return None if math.isfinite(value) else "must be finite"


def problem(name: str, value: Any, rule: str) -> str | None:
    """Says which key breaks `rule`, with its value, as one line; or None if it keeps it."""
    rest = broken(value, rule)
    return rest and (f"{name} ({value}): {rest}" if rule in _PATHS else f"{name} ({value}) {rest}")


def is_rule(text: str) -> bool:
    """Whether `text` is in the language; what else a user writes into an `Annotated` is not ours to judge."""
    if text.startswith("each: "):
        return is_rule(text.removeprefix("each: "))
    if " or " in text:
        return is_rule(text.split(" or ", 1)[1])
    return text in _PATHS or " | " in text or all(_IS_BOUND.fullmatch(bound) for bound in text.split(", "))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Gives "; did you mean 'x'?" for the nearest known word, or nothing."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.6)
    # Swapped letters are the commonest slip, and difflib likes missing ones better: modle is model, not mode.
    near.sort(key=lambda other: sorted(other) != sorted(word.lower()))
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def shown(value: Any) -> str:
    """Shows a value as the command line and YAML write it, a text in quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)


def unknown_key(key: str, siblings: Iterable[str], root: Mapping[str, Any]) -> str:
    """Says that there is no such key, and which one was probably meant.

    Args:
        key: the dotted key.
        siblings: the names that exist where it was looked for.
        root: the whole configuration; a key of another section is often meant: `learning_rate=0.1`.
    """
    parent, _, last = key.rpartition(".")
    names = [name for name in siblings if not name.startswith("_")]
    elsewhere = sorted((known for known in _dotted(root) if known.rpartition(".")[2] == last and not known.startswith(key)), key=len)
    if not parent and elsewhere:
        hint = f"; did you mean '{elsewhere[0]}'?"
    else:
        hint = did_you_mean(last, names) or (f"; did you mean '{elsewhere[0]}'?" if elsewhere else "")
    if not hint and parent:
        hint = f"; known keys of {parent}: {', '.join(names) or 'none'}"
    return f"unknown key '{key}'{hint or '; see --help for all keys'}"


def _dotted(node: Mapping[str, Any], path: str = "") -> list[str]:
    keys = []
    for name, value in node.items():
        keys.append(f"{path}{name}")
        if isinstance(value, Mapping):
            keys += _dotted(value, f"{path}{name}.")
    return keys


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
