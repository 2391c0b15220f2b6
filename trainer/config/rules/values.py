"""Rules of single keys, and of pairs of them. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from trainer.config.options import constraints
from trainer.config.schema import PAIRS, Experiment


def unknown_name(name: str, root: Mapping[str, Any]) -> str | None:
    """Return an error line if the dotted key `name` does not exist in `root`, else None."""
    node: Any = root
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return constraints.unknown_key(name, node if isinstance(node, Mapping) else (), root)
        node = node[part]
    return None


def check_empty(node: Any, path: str) -> Iterator[str]:
    """Refuse empty texts: there is no key for which one is a value."""
    for item in fields(node):
        value = getattr(node, item.name)
        name = f"{path}{item.name}"
        if is_dataclass(value):
            yield from check_empty(value, f"{name}.")
        elif name == "fault":
            for fault in value:
                yield from check_empty(value[fault], f"fault.{fault}.")
        elif line := constraints.check_empty(name, value, nullable="None" in str(item.type)):
            yield line


def check_values(node: Any, path: str) -> Iterator[str]:
    """Check each key against the rule in its schema."""
    for item in fields(node):
        value = getattr(node, item.name)
        name = f"{path}{item.name}"
        if is_dataclass(value):
            yield from check_values(value, f"{name}.")
        elif line := constraints.check_value(name, value, *item.metadata["rules"]):
            yield line


def check_pairs(experiment: Experiment) -> Iterator[str]:
    """Of each pair of keys exactly one must be set."""
    for first, second in PAIRS:
        first_value, second_value = attrgetter(first, second)(experiment)
        if first_value is not None and second_value is not None:
            yield (
                f"{first} ({first_value}) and {second} ({second_value}) are both set, "
                f"exactly one must be; add {second}=null"
            )
        if first_value is None and second_value is None:
            yield (
                f"neither {first} nor {second} is set, exactly one must be; add {first}=<number>"
            )
