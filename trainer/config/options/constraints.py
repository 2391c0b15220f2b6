"""A small language for the range of a value, used by the schema and in the signatures of targets.

A target states the range of an option as `Annotated[float, "> 0"]`, a schema field as
`key(1, "...", ">= 1")`:

    > 0             one bound;  also >=, <, <=
    >= 0, < 1       several bounds, all must hold
    max | min       one of these words
    each: a | b     every item of a list; a value of another type has none
    auto or >= 1    a word, or several with `|`, or else the bounds
    exists          a path that exists; also `file`, `directory`, `checkpoint`

It also words the two errors that every check needs: a violated rule and an unknown key. No
TensorFlow.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import Any

from trainer.config.other_names import key_hint

_BOUNDS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_PATHS = {
    "exists": (Path.exists, "no such file or directory"),
    "file": (Path.is_file, "no such file"),
    "directory": (Path.is_dir, "no such directory"),
    # A checkpoint is named by the common prefix of its files, which is no file itself.
    "checkpoint": (
        lambda path: path.exists() or Path(f"{path}.index").exists(),
        "no such run, checkpoint or file",
    ),
}
_PUBLISHED = (
    "; Keras keeps the published weights that it has downloaded and verified in ~/.keras/models: "
    "call tf.keras.applications.<network>(include_top=False) once, and write the path of the file"
)
_elsewhere: ContextVar[PurePath | None] = ContextVar("elsewhere", default=None)
_IS_BOUND = re.compile(r"(>=|<=|>|<) -?[\d.]+(e-?\d+)?")


def violation(value: Any, rule: str) -> str | None:
    """Return how `value` violates `rule`, as the rest of a sentence, or None if it does not.

    The value None is always allowed.
    """
    if value is None:
        return None
    if rule.startswith("each: "):
        items = value if isinstance(value, list | tuple) else ()
        problems = (violation(item, rule.removeprefix("each: ")) for item in items)
        problem = next(filter(None, problems), None)
        return problem and problem.replace("must", "each item must", 1)
    if " or " in rule:
        text, rest = rule.split(" or ", 1)
        words = text.split(" | ")
        if value in words or (_is_number(value) and not violation(value, rest)):
            return None
        return f"must be {', '.join(words)} or {rest}{did_you_mean(str(value), words)}"
    if rule in _PATHS:
        folder = _elsewhere.get()
        if folder is not None and Path(value).is_relative_to(folder):
            return None
        holds, problem = _PATHS[rule]
        if holds(Path(value).expanduser()):
            return None
        return problem + (_PUBLISHED if value == "imagenet" else "")
    if " | " in rule:
        words = rule.split(" | ")
        return (
            None
            if value in words
            else f"must be one of {', '.join(words)}{did_you_mean(str(value), words)}"
        )
    for bound in rule.split(", "):
        symbol, limit = bound.split()
        if not _is_number(value) or not _BOUNDS[symbol](value, float(limit)):
            return f"must be {rule.replace(', ', ' and ')}"
    return None if math.isfinite(value) else "must be finite"


@contextmanager
def paths_elsewhere(folder: PurePath) -> Iterator[None]:
    """Accept every path below a folder that only another machine has."""
    token = _elsewhere.set(folder)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def check_value(name: str, value: Any, rule: str) -> str | None:
    """Return an error line with the key and its value if the value violates `rule`, else None."""
    rest = _overflow(value) or violation(value, rule)
    return rest and (f"{name} ({value}): {rest}" if rule in _PATHS else f"{name} ({value}) {rest}")


def is_path(rule: str) -> bool:
    """Return whether `rule` asks for something that exists at a path."""
    return rule in _PATHS


def check_empty(name: str, value: Any, *, nullable: bool) -> str | None:
    """Return an error line with the key if its text, or one in its list, is empty, else None."""
    is_list = isinstance(value, list)
    if "" not in value if is_list else value != "":
        return None
    what = "has an empty item" if is_list else "is empty"
    fix = f", or write {name}=null for none" if nullable else ""
    return f"{name} {what}, perhaps from an unset shell variable; give a value{fix}"


def is_rule(text: str) -> bool:
    """Return whether `text` is in the language; other notes in an `Annotated` are not checked."""
    if text.startswith("each: "):
        return is_rule(text.removeprefix("each: "))
    if " or " in text:
        return is_rule(text.split(" or ", 1)[1])
    return (
        text in _PATHS
        or " | " in text
        or all(_IS_BOUND.fullmatch(bound) for bound in text.split(", "))
    )


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known word, or an empty string."""
    names = {name.lower(): name for name in words}
    near = difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.6)
    # Swapped letters are the commonest slip, but difflib prefers missing ones: modle is model, not
    # mode.
    near.sort(key=lambda other: sorted(other) != sorted(word.lower()))
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def format_value(value: Any) -> str:
    """Return a value as the command line and YAML write it, with text in quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)


def unknown_key(key: str, siblings: Iterable[str], root: Mapping[str, Any]) -> str:
    """Return the error line for an unknown key, with the key that was probably meant.

    Args:
        key: the dotted key.
        siblings: the names that exist in its section.
        root: the whole configuration: `learning_rate=0.1` means a key of another section.
    """
    parent, _, last = key.rpartition(".")
    names = [name for name in siblings if not name.startswith("_")]
    elsewhere = sorted(
        (
            other
            for other in _dotted(root)
            if other.rpartition(".")[2] == last and not other.startswith(key)
        ),
        key=len,
    )
    in_other_section = f"; did you mean '{elsewhere[0]}'?" if elsewhere else ""
    if not parent and elsewhere:
        hint = in_other_section
    else:
        hint = key_hint(last) or did_you_mean(last, names) or in_other_section
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


def _overflow(value: Any) -> str | None:
    """Return what is wrong with an integer that no tensor holds, or None."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must be an integer of 64 bits, at most 9223372036854775807"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
