"""Names for what is in a nest of tensors, arrays or specifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def paths(nest: Any, prefix: str = "", separator: str = "/") -> list[str]:
    """Return a name for each leaf, in the order of `tf.nest.flatten`: keys, and numbers from 1.

    Args:
        nest: dicts and tuples, also nested, or a leaf alone.
        prefix: what all names begin with; the name of a leaf alone.
        separator: between the parts of a name.
    """
    if isinstance(nest, Mapping):
        parts = [(key, nest[key]) for key in sorted(nest)]
    elif isinstance(nest, tuple | list):
        parts = list(enumerate(nest, 1))
    else:
        return [prefix]
    start = f"{prefix}{separator}" if prefix else ""
    return [name for key, part in parts for name in paths(part, f"{start}{key}", separator)]
