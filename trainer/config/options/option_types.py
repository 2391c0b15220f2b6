"""Reads annotations of options, as source: what they accept, their rules, and both in words.

No TensorFlow.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from trainer.config.options import constraints

NODES = {"ModelNode": "model", "OptimizerNode": "optimizer", "ScheduleNode": "schedule"}
"""Annotations of the options that are nodes of a task -> the group of their choices."""

_SCALARS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}
_LISTS = ("list", "tuple", "List", "Tuple", "Sequence")
_DICTS = ("dict", "Dict", "Mapping")


def describe_type(annotation: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Return what an annotation accepts and its rules in words: "an int or null, >= 1"."""
    return ", ".join(
        [
            type_in_words(annotation, names),
            *(rule.replace(" | ", ", ") for rule in rules(annotation, names)),
        ]
    )


def node_group(annotation: ast.expr | None, names: Mapping[str, ast.expr]) -> str | None:
    """Return the group of an option that is a node of a task, or None if it is not one."""
    if annotation is None:
        return None
    name, arguments = _parts(annotation, names)
    if name in NODES:
        return NODES[name]
    inner = arguments if name == "Union" else arguments[:1] if name == "Annotated" else []
    groups = (node_group(argument, names) for argument in inner)
    return next(filter(None, groups), None)


def expression(text: str) -> ast.expr:
    """Parse an annotation."""
    return ast.parse(text, mode="eval").body


def _parts(annotation: ast.expr, names: Mapping[str, ast.expr]) -> tuple[str, list[ast.expr]]:
    """Return the outermost name and arguments of an annotation.

    `X | Y` is a Union, and an alias is what it stands for.
    """
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _parts(expression(annotation.value), names)
    if isinstance(annotation, ast.Constant):
        return str(annotation.value), []
    if isinstance(annotation, ast.BinOp):
        return "Union", [annotation.left, annotation.right]
    if isinstance(annotation, ast.Subscript):
        arguments = (
            annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        )
        name = _parts(annotation.value, {})[0]
        return (
            ("Union", [*arguments, ast.Constant(None)]) if name == "Optional" else (name, arguments)
        )
    if isinstance(annotation, ast.Name) and annotation.id in names:
        # An alias may not stand for itself again, so it is taken out of the names.
        return _parts(
            names[annotation.id],
            {key: value for key, value in names.items() if key != annotation.id},
        )
    return str(getattr(annotation, "id", None) or getattr(annotation, "attr", "Any")), []


def accepts(value: Any, annotation: ast.expr, names: Mapping[str, ast.expr]) -> bool:
    """Return whether a value has the annotated type; unknown annotations accept everything."""
    name, arguments = _parts(annotation, names)
    if name == "Union":
        return any(accepts(value, argument, names) for argument in arguments)
    if name == "Annotated":
        return accepts(value, arguments[0], names)
    if name == "Literal":
        return any(
            isinstance(word, ast.Constant)
            and word.value == value
            and type(word.value) is type(value)
            for word in arguments
        )
    if name == "None":
        return value is None
    if name in _SCALARS:
        return isinstance(value, _SCALARS[name]) and (name == "bool" or not isinstance(value, bool))
    if name in _LISTS:
        return isinstance(value, list) and _accepts_items(value, name, arguments, names)
    return isinstance(value, Mapping) if name in (*_DICTS, *NODES) else True


def _accepts_items(
    value: list[Any], name: str, arguments: list[ast.expr], names: Mapping[str, ast.expr]
) -> bool:
    if not arguments:
        return True
    if name in ("tuple", "Tuple") and not _is_ellipsis(arguments[-1]):
        return len(value) == len(arguments) and all(
            accepts(item, kind, names) for item, kind in zip(value, arguments, strict=True)
        )
    return all(accepts(item, arguments[0], names) for item in value)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def type_in_words(annotation: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Return the accepted types in words: "an int or null"."""
    name, arguments = _parts(annotation, names)
    if name == "Union":
        return " or ".join(dict.fromkeys(type_in_words(argument, names) for argument in arguments))
    if name == "Annotated":
        return type_in_words(arguments[0], names)
    if name == "Literal":
        return f"one of {', '.join(str(word) for word in words(annotation, names))}"
    if name in _LISTS:
        kinds = list(
            dict.fromkeys(_parts(item, names)[0] for item in arguments if not _is_ellipsis(item))
        )
        size = (
            f"{len(arguments)} "
            if name in ("tuple", "Tuple") and arguments and not _is_ellipsis(arguments[-1])
            else ""
        )
        return f"a list of {size}{' and '.join(kinds)}" if len(kinds) > 0 else "a list"
    if name in _DICTS:
        return "a mapping"
    return {"None": "null", "int": "an int"}.get(name, f"a {name}")


def words(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[Any]:
    """Return the words of a Literal, also within a union."""
    name, arguments = _parts(annotation, names)
    if name == "Literal":
        return [word.value for word in arguments if isinstance(word, ast.Constant)]
    inner = arguments if name == "Union" else arguments[:1] if name == "Annotated" else []
    return [word for argument in inner for word in words(argument, names)]


def rules(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[str]:
    """Return the rules of an `Annotated`, also in a union; those of list items with `each: `."""
    name, arguments = _parts(annotation, names)
    if name in _LISTS:
        return [
            f"each: {rule}"
            for rule in dict.fromkeys(
                rule for argument in arguments for rule in rules(argument, names)
            )
        ]
    if name == "Union":
        return [rule for argument in arguments for rule in rules(argument, names)]
    if name != "Annotated":
        return []
    texts = [
        item.value
        for item in arguments[1:]
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    return [text for text in texts if constraints.is_rule(text)] + rules(arguments[0], names)
