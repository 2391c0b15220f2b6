"""Reads plain values into the dataclasses of the schema, and finds all that is wrong with them.

Hydra composes values of any kind; their types, ranges and unknown keys are checked here alone
(docs/adr/0006-options-are-signatures.md says why not by pydantic). No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from trainer.config.options import constraints, option_types

_SWITCHES = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}


class Reader:
    """Reads one configuration, and collects the problems.

    Args:
        root: the whole configuration, in which keys like unknown ones are looked for.

    Attributes:
        unknown: a line for each unknown key.
        wrong: a line for each value that is empty, or not of the type of its key, and so left out.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.unknown: list[str] = []
        self.wrong: list[str] = []
        self._root = root
        self._read: list[tuple[str, Any, Any]] = []

    def section(self, schema: type, values: Any, key: str = "") -> Any:
        """Return a dataclass of the schema; absent and wrong values have their defaults."""
        if not isinstance(values, Mapping):
            line = option_types.problem(key, values, Mapping)
            self.wrong.append(f"{line}; set a key in it, {key}.<key>=<value>")
            return schema()
        hints = hints_of(schema)
        arguments = {}
        for name, value in values.items():
            path = f"{key}.{name}" if key else str(name)
            if name not in hints:
                self.unknown.append(constraints.unknown_key(path, hints, self._root))
            elif value != "???":  # it is reported as missing
                converted = self._value(hints[name], value, path)
                nullable = option_types.accepts(None, hints[name])
                if line := constraints.check_empty(path, value, nullable=nullable):
                    self.wrong.append(line)
                elif option_types.accepts(converted, hints[name]):
                    arguments[name] = converted
                    self._read.append((path, converted, hints[name]))
                else:
                    self.wrong += filter(None, [option_types.problem(path, value, hints[name])])
        return schema(**arguments)

    def check(self) -> Iterator[str]:
        """Yield a line for each value that violates a rule of its key."""
        for key, value, hint in self._read:
            is_value = not (isinstance(value, Mapping) or dataclasses.is_dataclass(value))
            if is_value and (line := option_types.problem(key, value, hint)):
                yield line

    def _value(self, hint: Any, value: Any, key: str) -> Any:
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.section(hint, value, key)
        if isinstance(value, Mapping) and (item := _section_of_items(hint)):
            return {name: self.section(item, node, f"{key}.{name}") for name, node in value.items()}
        return _converted(value, hint)


@functools.cache
def hints_of(schema: type) -> Mapping[str, Any]:
    """Return the type of each key of a section by name, with its rules."""
    hints = get_type_hints(schema)
    rules = {field.name: field.metadata["rules"] for field in dataclasses.fields(schema)}
    return {
        name: Annotated[hints[name], *notes] if notes else hints[name]
        for name, notes in rules.items()
    }


def _section_of_items(hint: Any) -> Any:
    """Return `Fault` for `dict[str, Fault] | None`, or None."""
    mappings = (option for option in (hint, *get_args(hint)) if get_origin(option) is dict)
    items = (get_args(mapping)[1] for mapping in mappings)
    return next((item for item in items if dataclasses.is_dataclass(item)), None)


def _converted(value: Any, hint: Any) -> Any:
    """Return a value as the first type of its key that it can be: 1.0 for 1, 5 for "5".

    A variable of the environment is a text, and a name such as 5 looks like a number. What cannot
    be converted stays as it is.
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if type(value) in kinds or Any in kinds:
        return value
    for kind in kinds:
        with suppress(TypeError, ValueError, LookupError):
            return _as_kind(value, kind)
    return value


def _as_kind(value: Any, kind: Any) -> Any:
    """Return a value as a type, or raise an error."""
    is_scalar = isinstance(value, str | int | float)
    if kind is bool:
        return _SWITCHES[str(value).lower()]
    if kind is str and is_scalar:
        return str(value)
    if kind in (int, float) and type(value) in (int, str):
        return kind(value)
    if get_origin(kind) is list and isinstance(value, list | tuple):
        return [_converted(item, *get_args(kind)) for item in value]
    raise TypeError


def unknown_name(name: str, root: Mapping[str, Any]) -> str | None:
    """Return an error line if the dotted key `name` does not exist in `root`, else None."""
    node: Any = root
    parts = name.split(".")
    for length, part in enumerate(parts, 1):
        if not isinstance(node, Mapping) or part not in node:
            key = ".".join(parts[:length])
            return constraints.unknown_key(key, node if isinstance(node, Mapping) else (), root)
        node = node[part]
    return None
