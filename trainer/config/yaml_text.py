"""YAML of users and of records, read so that a few lines do not become billions of values.

An alias (`*name`) stands for a value as often as it is written, also within what aliases stand
for. No TensorFlow.
"""

from __future__ import annotations

from typing import Any

import yaml

_MAX_VALUES = 100_000
_MAX_FAST_CHARS = 16_000


def load(text: str) -> Any:
    """Return what a YAML text holds, as plain containers.

    Raises:
        yaml.YAMLError: it is not YAML, or has too many values; see `check`.
    """
    check(text)
    # libyaml, where PyYAML has it, takes a fifth of the time, and crashes at 30,000 brackets.
    is_short = len(text) <= _MAX_FAST_CHARS
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(text, fast if is_short else yaml.SafeLoader)


def check(text: str, name: str = "<text>") -> None:
    """Refuse a text whose aliases would make too many values.

    Raises:
        yaml.YAMLError: it would, or is no YAML.
    """
    if "&" not in text or "*" not in text:
        return  # no alias; the usual case costs nothing
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is not None and _num_values(node, {}) > _MAX_VALUES:
        mark = yaml.Mark(name, 0, node.start_mark.line, 0, None, 0)
        raise yaml.MarkedYAMLError(
            problem=f"its aliases (*name) make more than {_MAX_VALUES:,} values", problem_mark=mark
        )


def _num_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return how many values a node stands for; of one that contains itself, too many."""
    if (number := counts.get(id(node))) is None:
        counts[id(node)] = _MAX_VALUES + 1
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        number = counts[id(node)] = 1 + sum(_num_values(child, counts) for child in children)
    return number
