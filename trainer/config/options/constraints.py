"""Type hints of options and their rules: what they accept, in words, and what violates them.

`evaluate` turns an annotation that was read as source into the object that Python would make of it,
without importing what it names: unknown names stand for types that accept everything. The error of
an unknown key is worded here too. No TensorFlow.
"""

from __future__ import annotations

import ast
import collections.abc
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from trainer.annotations import NOTES, Bound, Each, Effect, Exists, OneOf, Rule
from trainer.config.other_names import key_hint
from trainer.config.removed import removal
from trainer.protocols import ModelNode, Node, OptimizerNode, ScheduleNode
from trainer.text import did_you_mean

NODES: Mapping[type[Node], str] = {
    ModelNode: "model",
    OptimizerNode: "optimizer",
    ScheduleNode: "schedule",
}
"""Hints of the options that are nodes of a task -> the group of their choices."""

_SCALARS: Mapping[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
}
_UNIONS = (Union, types.UnionType)
_LISTS = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping, *NODES)
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


class _Unknown(type):
    """The type of a name that only an import could resolve; what is made of it is unknown too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _KNOWN.get(name) or _Unknown(name, (), {})

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter([cls])

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return cls


def _note(kind: type, *args: Any, **named: Any) -> Any:
    """Return a note of an `Annotated`, or None if only an import could resolve its arguments."""
    if any(isinstance(item, _Unknown) for item in (*args, *named.values())):
        return None
    with suppress(TypeError):
        return kind(*args, **named)
    return None


_KNOWN: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in (*_SCALARS, *_LISTS, *_MAPPINGS)},
    **{
        name: getattr(typing, name)
        for name in ("Annotated", "Any", "Dict", "List", "Literal", "Optional", "Tuple", "Union")
    },
    **{kind.__name__: functools.partial(_note, kind) for kind in NOTES},
}
"""What the names in annotations stand for, from any module."""


class Names(dict[str, Any]):
    """What the names in the annotations of a module stand for: also aliases that it assigns."""

    def __init__(self, aliases: Mapping[str, ast.expr]) -> None:
        super().__init__(_KNOWN)
        self._aliases = aliases

    def __missing__(self, name: str) -> Any:
        self[name] = _Unknown(name, (), {})  # an alias may not stand for itself
        if name in self._aliases:
            self[name] = evaluate(self._aliases[name], self)
        return self[name]


def evaluate(annotation: ast.expr | str, names: Names) -> Any:
    """Return the type hint of an annotation; `Any`: only an import could resolve it."""
    try:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = annotation.value
        if isinstance(annotation, str):
            annotation = ast.parse(annotation, mode="eval").body
        code = compile(ast.Expression(annotation), "<annotation>", "eval")
        return eval(code, {"__builtins__": {}}, names)
    except Exception:  # any error of the expression
        return Any


def of_field(item: Field[Any]) -> Any:
    """Return the type hint of a field of the schema, with its rules."""
    hint = evaluate(str(item.type), Names({}))
    rules = item.metadata["rules"]
    return Annotated[hint, *rules] if rules else hint


def problem(key: str, value: Any, hint: Any) -> str | None:
    """Return an error line if a plain value has not the type of a hint or violates a rule of it."""
    if not accepts(value, hint):
        near = did_you_mean(str(value), map(str, words(hint)))
        return f"{key} ({format_value(value)}) must be {in_words(hint)}{near}"
    rules = rules_of(hint)
    nullable = accepts(None, hint)
    # A text that is neither optional nor a path, such as a separator, may be empty.
    is_name = nullable or any(isinstance(rule, Exists) for rule in rules)
    if is_name and (line := check_empty(key, value, nullable=nullable)):
        return line
    return check_value(key, value, *rules)


def accepts(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of a hint; unknown types accept everything."""
    return any(_accepts(value, kind) for kind in _members(hint))


def _members(hint: Any) -> list[Any]:
    """Return the types of a union, without their notes; any other type is alone."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in _UNIONS:
        return [kind for member in get_args(hint) for kind in _members(member)]
    return [hint]


def _accepts(value: Any, hint: Any) -> bool:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return any(word == value and type(word) is type(value) for word in arguments)
    if kind in (None, types.NoneType):
        return value is None
    if kind in _SCALARS:
        return isinstance(value, _SCALARS[kind]) and (kind is bool or not isinstance(value, bool))
    if kind in _LISTS:
        items = _items(hint, value) if isinstance(value, list) else None
        return items is not None and all(accepts(item, of_item) for item, of_item in items)
    return isinstance(value, Mapping) if kind in _MAPPINGS else True


def _items(hint: Any, value: list[Any]) -> list[tuple[Any, Any]] | None:
    """Return each item of a list with its hint, or None if it must have another length."""
    arguments = get_args(hint)
    if get_origin(hint) is tuple and ... not in arguments:
        is_fit = len(value) == len(arguments)
        return list(zip(value, arguments, strict=True)) if is_fit else None
    return [(item, arguments[0]) for item in value] if arguments else []


def rules_of(hint: Any) -> list[Rule]:
    """Return the rules of an `Annotated`, also in a union; those of list items as an `Each`."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return [
            *(note for note in arguments[1:] if isinstance(note, Rule)),
            *rules_of(arguments[0]),
        ]
    if kind in (*_UNIONS, *_LISTS):
        rules = dict.fromkeys(rule for argument in arguments for rule in rules_of(argument))
        return [Each(tuple(rules))] if rules and kind in _LISTS else list(rules)
    return []


def effect_of(hint: Any) -> Effect | None:
    """Return the effect that an `Annotated` states, or None."""
    notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((note for note in reversed(notes) if isinstance(note, Effect)), None)


def node_group(hint: Any) -> str | None:
    """Return the group of an option that is a node of a task, or None if it is not one."""
    return next((NODES[kind] for kind in _members(hint) if kind in NODES), None)


def words(hint: Any) -> list[Any]:
    """Return the words of a Literal, also within a union."""
    literals = (kind for kind in _members(hint) if get_origin(kind) is Literal)
    return [word for literal in literals for word in get_args(literal)]


def describe(hint: Any) -> str:
    """Return what a hint accepts and its rules in words: "an int or null, >= 1"."""
    rules = rules_of(hint)
    types = [] if any(isinstance(rule, OneOf) for rule in rules) else [in_words(hint)]
    return ", ".join([*types, *map(str, rules)])


def in_words(hint: Any) -> str:
    """Return the types that a hint accepts in words: "an int or null"."""
    return " or ".join(dict.fromkeys(map(_in_words, _members(hint))))


def _in_words(hint: Any) -> str:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if kind in _LISTS:
        items = [in_words(item) for item in arguments if item is not ...]
        kinds = dict.fromkeys(item.removeprefix("an ").removeprefix("a ") for item in items)
        is_fixed = kind is tuple and arguments and ... not in arguments
        size = f"{len(arguments)} " if is_fixed else ""
        return f"a list of {size}{' and '.join(kinds)}" if kinds else "a list"
    if kind in _MAPPINGS:
        return "a mapping"
    name = getattr(kind, "__name__", str(kind))
    words = {"NoneType": "null", "bool": "true or false", "int": "an int"}
    return words.get(name, f"a {name}")


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
        case OneOf() if isinstance(value, list):
            return _violation(value, Each((rule,)))
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
    exists, problem = _PATHS[what]
    return None if exists(Path(value).expanduser()) else problem


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
        root: the whole configuration: `learning_rate=0.1` means a key of another section.
    """
    if gone := removal(key):
        return gone
    parent, _, last = key.rpartition(".")
    names = [name for name in siblings if not name.startswith("_")]
    # Of several keys with one last part, the shortest.
    others = sorted(_dotted(root), key=len, reverse=True)
    by_last = {other.rpartition(".")[2]: other for other in others if not other.startswith(key)}
    found = difflib.get_close_matches(last, by_last, n=1, cutoff=0.8)
    elsewhere = f"; did you mean '{by_last[found[0]]}'?" if found else ""
    if not parent and found == [last]:
        hint = elsewhere
    else:
        near = did_you_mean(last, names)
        if parent:  # the whole key: the last part alone may be one of another section
            near = near.replace("'", f"'{parent}.", 1)
        hint = key_hint(last) or near or elsewhere
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


def _dotted(node: Mapping[str, Any], path: str = "") -> list[str]:
    keys = []
    for name, value in node.items():
        keys.append(f"{path}{name}")
        if isinstance(value, Mapping):
            keys += _dotted(value, f"{path}{name}.")
    return keys


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
