"""Members of what users write: the optional ones with their defaults, and which are missing."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, TypeVar, cast

Declared = TypeVar("Declared")


class _WithDefaults:
    def __init__(self, owner: Any, declared: type) -> None:
        self._owner = owner
        self._declared = declared

    def __getattr__(self, name: str) -> Any:
        default = getattr(self._declared, name)  # also of a member that is there: it is declared
        if isinstance(default, FunctionType):
            default = default.__get__(self._owner)
        return getattr(self._owner, name, default)


def with_defaults(owner: Any, declared: type[Declared]) -> Declared:
    """Return a view of a user's object that has every optional member, its own or the default.

    Args:
        owner: the object; it need not be of the class.
        declared: the class that declares the members. Its methods are called with `owner`.
    """
    return cast("Declared", _WithDefaults(owner, declared))


def names_of(protocol: type) -> tuple[str, ...]:
    """Return the names of a protocol's attributes and methods."""
    methods = [name for name in vars(protocol) if not name.startswith("_")]
    return (*protocol.__annotations__, *methods)


def lacking(key: str, value: Any, names: Sequence[str], when: str = "") -> list[str]:
    """Return one line that names the members that `value` lacks, or nothing."""
    missing = [name for name in names if not hasattr(value, name)]
    if not missing:
        return []
    return [
        f"{key} ({type(value).__name__}) has no {', '.join(missing)}{when}; "
        "add what trainer/protocols/ describes"
    ]
