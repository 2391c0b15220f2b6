"""Reads annotations of options, as source: what they accept, their rules, and both in words.

No TensorFlow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer.annotations import BY_NAME, Each, Effect, OneOf, Rule

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


def describe_type(
    annotation: ast.expr, names: Mapping[str, ast.expr], more: Sequence[Rule] = ()
) -> str:
    """Return what an annotation accepts and its rules in words: "an int or null, >= 1".

    Args:
        annotation: as source.
        names: what aliases in it stand for.
        more: further rules.
    """
    limits = [*rules(annotation, names), *more]
    if any(isinstance(rule, OneOf) for rule in limits):
        return ", ".join(map(str, limits))
    return ", ".join([type_in_words(annotation, names), *map(str, limits)])


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
        items = (type_in_words(item, names) for item in arguments if not _is_ellipsis(item))
        kinds = dict.fromkeys(item.removeprefix("an ").removeprefix("a ") for item in items)
        size = (
            f"{len(arguments)} "
            if name in ("tuple", "Tuple") and arguments and not _is_ellipsis(arguments[-1])
            else ""
        )
        return f"a list of {size}{' and '.join(kinds)}" if kinds else "a list"
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


def rules(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[Rule]:
    """Return the rules of an `Annotated`, also in a union; those of list items as an `Each`."""
    name, arguments = _parts(annotation, names)
    if name in _LISTS:
        inner = dict.fromkeys(rule for argument in arguments for rule in rules(argument, names))
        return [Each(tuple(inner))] if inner else []
    if name == "Union":
        return [rule for argument in arguments for rule in rules(argument, names)]
    if name != "Annotated":
        return []
    notes = [note for note in _notes(arguments) if isinstance(note, Rule)]
    return [*notes, *rules(arguments[0], names)]


def rule_as_text(annotation: ast.expr) -> str | None:
    """Return a rule that an annotation states as text, `>= 1`, which would not be checked."""
    for node in ast.walk(annotation):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and text.startswith((">", "<", "each:")):
            return text
    return None


def effect(annotation: ast.expr | None, names: Mapping[str, ast.expr]) -> Effect | None:
    """Return the effect that an `Annotated` states, also in an alias; None: it states none."""
    name, arguments = _parts(annotation, names) if annotation is not None else ("", [])
    if name != "Annotated":
        return None
    notes = (note for note in _notes(arguments) if isinstance(note, Effect))
    return next(notes, None) or effect(arguments[0], names)


def _notes(arguments: Sequence[ast.expr]) -> Iterator[Any]:
    """Yield the objects of `trainer.annotations` in an `Annotated`; other notes are not ours.

    They are known by their names, so those of the package `annotated-types` are understood too.
    """
    for note in arguments[1:]:
        if isinstance(note, ast.Call) and (kind := BY_NAME.get(_parts(note.func, {})[0])):
            keywords = {item.arg: item.value for item in note.keywords if item.arg is not None}
            with suppress(ValueError, TypeError):  # no literals
                yield kind(
                    *map(ast.literal_eval, note.args),
                    **{name: ast.literal_eval(value) for name, value in keywords.items()},
                )
