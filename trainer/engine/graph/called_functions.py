"""The functions that an operation of a graph calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def called_functions(node: Any) -> Iterator[Any]:
    """Yield the functions in the attributes of a node, a NodeDef, each a mutable NameAttrList."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func
