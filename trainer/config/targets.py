"""Checks the options of a `_target_` node against the signature of its target.

The signature is read from source: nothing is imported. No TensorFlow.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import Any

from trainer.config import constraints, signatures
from trainer.config.signatures import Option, Signature

_SPECIAL = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
_SCALARS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}
_LISTS = ("list", "tuple", "List", "Tuple", "Sequence")
_DICTS = ("dict", "Dict", "Mapping")


def check(
    node: Any,
    path: str,
    arguments: Collection[str] = (),
    engine_keys: Mapping[str, str] | None = None,
) -> list[str]:
    """Check a `_target_` node and the nodes in its options; return the problems, one line each.

    Args:
        node: the node, as plain containers.
        path: its dotted key.
        arguments: parameters that the engine passes by position, so that they are no options.
        engine_keys: keys of the node that the engine reads itself: name -> annotation, as source.
    """
    if node is None:
        return [f"{path} has no value; add {path}=<choice>"]
    if not isinstance(node, Mapping) or not isinstance(target := node.get("_target_"), str):
        return [
            f"{path} ({constraints.format_value(node)}) must be a mapping with a _target_, "
            "the dotted path of a function or class"
        ]
    own = {name: _expression(text) for name, text in (engine_keys or {}).items()}
    values = {name: value for name, value in node.items() if name not in _SPECIAL}
    problems = [line for name, value in values.items() for line in _nested(value, f"{path}.{name}")]
    problems += [
        line
        for name, note in own.items()
        if name in values
        for line in _value(f"{path}.{name}", values[name], note, {})
    ]
    problems += [
        f"{path}.{name} has no value; add it"
        for name, note in own.items()
        if name not in values and not _accepts(None, note, {})
    ]
    if target == "???":
        return problems
    try:
        signature = signatures.read(target)
    except signatures.TargetError as error:
        separator = " " if str(error).startswith(("must", "is ", "cannot")) else ": "
        return [*problems, f"{path}._target_ ({target}){separator}{error}"]
    if signature is None:
        return problems
    rest = {name: value for name, value in values.items() if name not in own}
    problems += _check_options(rest, path, signature, arguments, list(own))
    if "_args_" in node:
        return problems
    return problems + _missing_options(rest, path, signature, arguments)


def describe_type(annotation: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Return what an annotation accepts and its rules in words: "an int or null, >= 1"."""
    return ", ".join(
        [
            _type_in_words(annotation, names),
            *(rule.replace(" | ", ", ") for rule in _rules(annotation, names)),
        ]
    )


def _options(signature: Signature, arguments: Collection[str]) -> dict[str, Option]:
    """Return the options of a target by name: its parameters but for the engine's arguments."""
    parameters = (*signature.positional[len(arguments) :], *signature.keywords)
    return {parameter.name: parameter for parameter in parameters}


def _check_options(
    values: Mapping[str, Any],
    path: str,
    signature: Signature,
    arguments: Collection[str],
    engine_keys: list[str],
) -> list[str]:
    options = _options(signature, arguments)
    passed = {option.name for option in signature.positional[: len(arguments)]} | set(arguments)
    problems = []
    for name, value in values.items():
        if name in options:
            problems += _value(f"{path}.{name}", value, options[name].annotation, signature.names)
        elif name in passed:
            shown = constraints.format_value(value)
            problems.append(f"{path}.{name} ({shown}) is passed by the engine; remove it")
        elif not signature.takes_any:
            problems.append(constraints.unknown_key(f"{path}.{name}", [*engine_keys, *options], {}))
    return problems


def _missing_options(
    values: Mapping[str, Any], path: str, signature: Signature, arguments: Collection[str]
) -> list[str]:
    problems = []
    for option in _options(signature, arguments).values():
        if option.required and option.name not in values:
            kind = "value"
            if option.annotation:
                kind = _type_in_words(option.annotation, signature.names)
            noun = kind.removeprefix("a ").removeprefix("an ")
            key = f"{path}.{option.name}"
            problems.append(f"{key} has no value; add +{key}=<{noun}>")
    return problems


def _nested(value: Any, path: str) -> list[str]:
    """Check the `_target_` nodes that an option holds."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return check(value, path)
        return [line for name, item in value.items() for line in _nested(item, f"{path}.{name}")]
    if isinstance(value, list):
        return [
            line for index, item in enumerate(value) for line in _nested(item, f"{path}[{index}]")
        ]
    return []


def _value(
    key: str, value: Any, annotation: ast.expr | None, names: Mapping[str, ast.expr]
) -> list[str]:
    # A nested node stands for the object it makes; the caller reports `???` as a missing value.
    if annotation is None or value == "???" or (isinstance(value, Mapping) and "_target_" in value):
        return []
    if not _accepts(value, annotation, names):
        hint = constraints.did_you_mean(
            str(value), [str(word) for word in _words(annotation, names)]
        )
        accepted = _type_in_words(annotation, names)
        return [f"{key} ({constraints.format_value(value)}) must be {accepted}{hint}"]
    problems = (constraints.check_value(key, value, rule) for rule in _rules(annotation, names))
    return [line for line in problems if line]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _parts(annotation: ast.expr, names: Mapping[str, ast.expr]) -> tuple[str, list[ast.expr]]:
    """Return the outermost name and arguments of an annotation.

    `X | Y` is a Union, and an alias is what it stands for.
    """
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _parts(_expression(annotation.value), names)
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


def _accepts(value: Any, annotation: ast.expr, names: Mapping[str, ast.expr]) -> bool:
    """Return whether a value has the annotated type; unknown annotations accept everything."""
    name, arguments = _parts(annotation, names)
    if name == "Union":
        return any(_accepts(value, argument, names) for argument in arguments)
    if name == "Annotated":
        return _accepts(value, arguments[0], names)
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
    return isinstance(value, Mapping) if name in _DICTS else True


def _accepts_items(
    value: list[Any], name: str, arguments: list[ast.expr], names: Mapping[str, ast.expr]
) -> bool:
    if not arguments:
        return True
    if name in ("tuple", "Tuple") and not _is_ellipsis(arguments[-1]):
        return len(value) == len(arguments) and all(
            _accepts(item, kind, names) for item, kind in zip(value, arguments, strict=True)
        )
    return all(_accepts(item, arguments[0], names) for item in value)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _type_in_words(annotation: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Return the accepted types in words: "an int or null"."""
    name, arguments = _parts(annotation, names)
    if name == "Union":
        return " or ".join(dict.fromkeys(_type_in_words(argument, names) for argument in arguments))
    if name == "Annotated":
        return _type_in_words(arguments[0], names)
    if name == "Literal":
        return f"one of {', '.join(str(word) for word in _words(annotation, names))}"
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


def _words(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[Any]:
    """Return the words of a Literal, also within a union."""
    name, arguments = _parts(annotation, names)
    if name == "Literal":
        return [word.value for word in arguments if isinstance(word, ast.Constant)]
    inner = arguments if name == "Union" else arguments[:1] if name == "Annotated" else []
    return [word for argument in inner for word in _words(argument, names)]


def _rules(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[str]:
    """Return the rules of an `Annotated`, also in a union; those of list items with `each: `."""
    name, arguments = _parts(annotation, names)
    if name in _LISTS:
        return [
            f"each: {rule}"
            for rule in dict.fromkeys(
                rule for argument in arguments for rule in _rules(argument, names)
            )
        ]
    if name == "Union":
        return [rule for argument in arguments for rule in _rules(argument, names)]
    if name != "Annotated":
        return []
    texts = [
        item.value
        for item in arguments[1:]
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    return [text for text in texts if constraints.is_rule(text)] + _rules(arguments[0], names)
