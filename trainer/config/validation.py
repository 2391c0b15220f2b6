"""Reads plain values into the dataclasses of the schema, and finds all that is wrong with them.

Hydra composes values of any kind; types, ranges and unknown keys are checked here alone.

Why not pydantic: importing it and building its model of this schema takes 120 to 150 ms, a fifth of
the time to the first line of a command, in every process of a run. Options of targets are checked
against signatures as well, which pydantic would not do without importing TensorFlow, and each of
its messages would be replaced by one that says what to write instead. No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from trainer.config.options import constraints

_SWITCHES = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}
_WORDS = {int: "an int", float: "a float", str: "a str", bool: "true or false", NoneType: "null"}


class Reader:
    """Reads one configuration, and collects the problems.

    Args:
        root: the whole configuration, in which keys like unknown ones are looked for.

    Attributes:
        unknown: a line for each unknown key.
        wrong: a line for each value of another type than its key has, which is left out.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.unknown: list[str] = []
        self.wrong: list[str] = []
        self._root = root
        self._read: list[tuple[str, Any, dataclasses.Field[Any]]] = []

    def section(self, schema: type, values: Any, key: str = "") -> Any:
        """Return a dataclass of the schema; absent and wrong values have their defaults."""
        if not isinstance(values, Mapping):
            self._report(key, values, f"a mapping; set a key in it, {key}.<key>=<value>")
            return schema()
        known = keys_of(schema)
        arguments = {}
        for name, value in values.items():
            path = f"{key}.{name}" if key else str(name)
            if name not in known:
                self.unknown.append(constraints.unknown_key(path, known, self._root))
            elif value != "???":  # it is reported as missing
                field, kind = known[name]
                try:
                    arguments[name] = self._value(kind, value, path)
                    self._read.append((path, arguments[name], field))
                except (TypeError, ValueError):
                    more = f"; write {path}=[...]" if get_origin(kind) is list else ""
                    self._report(path, value, f"{in_words(kind)}{more}")
        return schema(**arguments)

    def check(self) -> Iterator[str]:
        """Yield a line for each value that violates a rule of its key; an empty text is wrong."""
        for key, value, field in self._read:
            nullable = "None" in str(field.type)
            if line := constraints.check_empty(key, value, nullable=nullable):
                self.wrong.append(line)
            elif isinstance(value, Mapping):  # a node, or a section
                continue
            elif line := constraints.check_value(key, value, *field.metadata["rules"]):
                yield line

    def _value(self, kind: Any, value: Any, key: str) -> Any:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self.section(kind, value, key)
        if isinstance(value, Mapping) and (item := _section_of_items(kind)):
            return {name: self.section(item, node, f"{key}.{name}") for name, node in value.items()}
        return convert(value, kind)

    def _report(self, key: str, value: Any, accepted: str) -> None:
        self.wrong.append(f"{key} ({constraints.format_value(value)}) must be {accepted}")


@functools.cache
def keys_of(schema: type) -> Mapping[str, tuple[dataclasses.Field[Any], Any]]:
    """Return field and type of each key of a section by name."""
    kinds = get_type_hints(schema)
    return {field.name: (field, kinds[field.name]) for field in dataclasses.fields(schema)}


def _section_of_items(kind: Any) -> Any:
    """Return `Fault` for `dict[str, Fault] | None`, or None."""
    mappings = (option for option in (kind, *get_args(kind)) if get_origin(option) is dict)
    items = (get_args(mapping)[1] for mapping in mappings)
    return next((item for item in items if dataclasses.is_dataclass(item)), None)


def convert(value: Any, kind: Any) -> Any:
    """Return a value as the type of its key: 1.0 for 1, "5" for 5, 5 for "5" of the environment.

    Raises:
        TypeError, ValueError: it cannot be one.
    """
    if kind is Any or type(value) is kind:
        return value
    if isinstance(kind, UnionType):
        return _convert_to_one(value, get_args(kind))
    is_scalar = isinstance(value, str | int | float)
    if kind is bool and str(value).lower() in _SWITCHES:
        return _SWITCHES[str(value).lower()]
    if kind is str and is_scalar:
        return str(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if kind in (int, float) and (is_number or isinstance(value, str)):
        return kind(value)
    if get_origin(kind) is list and isinstance(value, list | tuple):
        return [convert(item, *get_args(kind)) for item in value]
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {name: convert(item, get_args(kind)[1]) for name, item in value.items()}
    raise TypeError(f"{value!r} is no {kind}")


def _convert_to_one(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Return a value as the first type of a union that it has, or else that it can be."""
    if type(value) in kinds:
        return value
    for kind in kinds:
        try:
            return convert(value, kind)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{value!r} is none of {kinds}")


def in_words(kind: Any) -> str:
    """Return what a type accepts: "an int or null"."""
    if isinstance(kind, UnionType):
        return " or ".join(map(in_words, get_args(kind)))
    if get_origin(kind) is list:
        return f"a list of {in_words(get_args(kind)[0]).rpartition(' ')[2]}"
    return _WORDS.get(kind, "a mapping")


def unknown_name(name: str, root: Mapping[str, Any]) -> str | None:
    """Return an error line if the dotted key `name` does not exist in `root`, else None."""
    node: Any = root
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return constraints.unknown_key(name, node if isinstance(node, Mapping) else (), root)
        node = node[part]
    return None
