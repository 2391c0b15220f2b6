"""Type hints of options: what they accept, their rules and effect, and all of it in words.

`evaluate` turns an annotation that was read as source into the object that Python would make of it,
without importing what it names: unknown names stand for types that accept everything.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from trainer.annotations import NOTES, Each, Effect, Exists, OneOf, Rule
from trainer.config.options import constraints
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


class _Unknown(type):
    """The type of a name that only an import could tell; what is made of it is unknown too."""

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
    """Return a note of an `Annotated`, or None if only an import could tell its arguments."""
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
"""What the names in annotations stand for, wherever they are imported from."""


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
    """Return the type hint that an annotation stands for; `Any`: only an import could tell."""
    try:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = annotation.value
        if isinstance(annotation, str):
            annotation = ast.parse(annotation, mode="eval").body
        code = compile(ast.Expression(annotation), "<annotation>", "eval")
        return eval(code, {"__builtins__": {}}, names)
    except Exception:  # whatever the expression does
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
        return f"{key} ({constraints.format_value(value)}) must be {in_words(hint)}{near}"
    rules = rules_of(hint)
    nullable = accepts(None, hint)
    # A text that is neither optional nor a path, such as a separator, may be empty.
    is_name = nullable or any(isinstance(rule, Exists) for rule in rules)
    if is_name and (line := constraints.check_empty(key, value, nullable=nullable)):
        return line
    return constraints.check_value(key, value, *rules)


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
