"""A key of the schema: its default, its rules, its effect, and one line of explanation."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from trainer.annotations import Effect, Rule


class BuiltIn:
    """The note of a key that only the built-in loop uses, not one of the user's own."""


BUILT_IN = BuiltIn()


def key(
    default: Any, help: str, *notes: Rule | Effect | BuiltIn, target: Effect | None = None
) -> Any:
    """Return a schema field.

    Args:
        *notes: the rules of its values; its effect on a continued run, without one that of its
            section; and `BUILT_IN`.
        target: a group's: the effect of another `_target_`, if it is not that of its options.
    """
    rules = tuple(note for note in notes if isinstance(note, Rule))
    effect = next((note for note in notes if isinstance(note, Effect)), None)
    metadata = {
        "help": help,
        "rules": rules,
        "effect": effect,
        "target": target or effect,
        "built_in": BUILT_IN in notes,
    }
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
