"""Checks values against the rules of `trainer.annotations`, and words what is wrong.

It also words the error of an unknown key. No TensorFlow.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import Any

from trainer.annotations import Bound, Each, Exists, OneOf, Rule
from trainer.config.other_names import key_hint
from trainer.config.removed import removal
from trainer.text import did_you_mean

_PATHS = {
    "path": (Path.exists, ": no such file or directory"),
    "file": (Path.is_file, ": no such file"),
    "directory": (Path.is_dir, ": no such directory"),
    # A checkpoint is named by the common prefix of its files, which is no file itself.
    "checkpoint": (
        lambda path: path.exists() or Path(f"{path}.index").exists(),
        ": no such run, checkpoint or file",
    ),
}
_FEW_WORDS = 9
_elsewhere: ContextVar[PurePath | None] = ContextVar("elsewhere", default=None)


def violation(value: Any, rules: Sequence[Rule]) -> str | None:
    """Return how `value` violates one of `rules`, as what follows it in a line, or None.

    The value None is always allowed.
    """
    if value is None:
        return None
    bounds = [rule for rule in rules if isinstance(rule, Bound)]
    others = (_violation(value, rule) for rule in rules if not isinstance(rule, Bound))
    return _out_of_bounds(value, bounds) or next(filter(None, others), None)


def _out_of_bounds(value: Any, bounds: Sequence[Bound]) -> str | None:
    if not bounds:
        return None
    if not _is_number(value) or not all(bound.holds(value) for bound in bounds):
        return f" must be {' and '.join(map(str, bounds))}"
    return None if math.isfinite(value) else " must be finite"


def _violation(value: Any, rule: Rule) -> str | None:
    match rule:
        case Each(rules):
            items = value if isinstance(value, list | tuple) else ()
            problem = next(filter(None, (violation(item, rules) for item in items)), None)
            return problem and problem.replace("must", "each item must", 1)
        case OneOf(words, number):
            is_number = _is_number(value) and math.isfinite(value)
            if value in words or (number is not None and is_number and number.holds(value)):
                return None
            choice = "" if number is not None else "one of "
            hint = did_you_mean(str(value), words)
            if hint and len(words) > _FEW_WORDS:  # the hint first, before a long list
                return f" must be one of {len(words)} words{hint} They are {rule}"
            return f" must be {choice}{rule}{hint}"
        case Exists(what, word):
            return None if word is not None and value == word else _missing(value, what)
    return None


def _missing(value: Any, what: str) -> str | None:
    folder = _elsewhere.get()
    if folder is not None and Path(value).is_relative_to(folder):
        return None
    exists, problem = _PATHS[what]
    if exists(Path(value).expanduser()):
        return None
    return problem


@contextmanager
def paths_elsewhere(folder: PurePath) -> Iterator[None]:
    """Accept every path below a folder that only another machine has."""
    token = _elsewhere.set(folder)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def check_value(name: str, value: Any, *rules: Rule) -> str | None:
    """Return an error line with the key and its value if the value violates a rule, else None."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # no tensor holds it
        rest: str | None = " must be an integer of 64 bits, at most 9223372036854775807"
    else:
        rest = violation(value, rules)
    return rest and f"{name} ({value}){rest}"


def check_empty(name: str, value: Any, *, nullable: bool) -> str | None:
    """Return an error line with the key if its text, or one in its list, is empty, else None."""
    is_list = isinstance(value, list)
    if "" not in value if is_list else value != "":
        return None
    what = "has an empty item" if is_list else "is empty"
    fix = f", or write {name}=null for none" if nullable else ""
    return f"{name} {what}, perhaps from an unset shell variable; give a value{fix}"


def format_value(value: Any) -> str:
    """Return a value as the command line and YAML write it, with text in quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)


def format_plain(value: Any) -> str:
    """Return a value as the command line takes it: text and lists without quotation marks."""
    if isinstance(value, list):
        return f"[{','.join(map(format_plain, value))}]"
    return value if isinstance(value, str) else format_value(value)


def unknown_key(key: str, siblings: Iterable[str], root: Mapping[str, Any]) -> str:
    """Return the error line for an unknown key, with the key that was probably meant.

    Args:
        siblings: the names that exist in its section.
        root: the whole configuration: `learning_rate=0.1` means a key of another section.
    """
    if gone := removal(key):
        return gone
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
        near = did_you_mean(last, names)
        if parent:  # the whole key: the last part alone may be one of another section
            near = near.replace("'", f"'{parent}.", 1)
        hint = key_hint(last) or near or in_other_section or _near_elsewhere(last, root)
    if not hint and parent:
        hint = f"; known keys of {parent}: {', '.join(names) or 'none'}"
    return f"unknown key '{key}'{hint or '; see --help all'}"


def unknown_name(name: str, root: Mapping[str, Any]) -> str | None:
    """Return an error line if the dotted key `name` does not exist in `root`, else None."""
    node: Any = root
    parts = name.split(".")
    for length, part in enumerate(parts, 1):
        if not isinstance(node, Mapping) or part not in node:
            key = ".".join(parts[:length])
            return unknown_key(key, node if isinstance(node, Mapping) else (), root)
        node = node[part]
    return None


def _near_elsewhere(word: str, root: Mapping[str, Any]) -> str:
    """Return a suggestion of a key whose last part is much like a word, or ""."""
    names = (key for key in sorted(_dotted(root), key=len, reverse=True) if key != word)
    keys = {key.rpartition(".")[2]: key for key in names}
    near = difflib.get_close_matches(word, keys, n=1, cutoff=0.8)
    return f"; did you mean '{keys[near[0]]}'?" if near else ""


def _dotted(node: Mapping[str, Any], path: str = "") -> list[str]:
    keys = []
    for name, value in node.items():
        keys.append(f"{path}{name}")
        if isinstance(value, Mapping):
            keys += _dotted(value, f"{path}{name}.")
    return keys


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
