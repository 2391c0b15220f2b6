"""Checks the options of a `_target_` node against the signature it names, before anything is imported. No TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import Any

from trainer import rules, signatures
from trainer.signatures import Option, Signature

_SPECIAL = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_LISTS = ("list", "tuple", "List", "Tuple", "Sequence")
_DICTS = ("dict", "Dict", "Mapping")


def check(node: Any, path: str, given: Collection[str] = (), engine_keys: Mapping[str, str] | None = None) -> list[str]:
    """Checks one `_target_` node, and the nodes in its options; returns the problems, a line each.

    Args:
        node: the node, as plain containers.
        path: its dotted key.
        given: parameters that the engine passes, by position, so that they are not options.
        engine_keys: keys of this node that the engine keeps for itself: name -> annotation, as source.
    """
    if node is None:
        return [f"{path} has no value; add {path}=<choice>"]
    if not isinstance(node, Mapping) or not isinstance(target := node.get("_target_"), str):
        return [f"{path} ({rules.shown(node)}) must be a mapping with a _target_, the dotted path of a function or class"]
    own = {name: _expression(text) for name, text in (engine_keys or {}).items()}
    values = {name: value for name, value in node.items() if name not in _SPECIAL}
    problems = [line for name, value in values.items() for line in _nested(value, f"{path}.{name}")]
    problems += [line for name, note in own.items() if name in values for line in _value(f"{path}.{name}", values[name], note, {})]
    problems += [f"{path}.{name} has no value; add it" for name, note in own.items() if name not in values and not _accepts(None, note, {})]
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
    return problems + _options(rest, path, signature, given, list(own), needs_all="_args_" not in node)


def described(annotation: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Says in words what an annotation accepts, and its rules: "an int or null, >= 1"."""
    return ", ".join([_described(annotation, names), *(rule.replace(" | ", ", ") for rule in _rules(annotation, names))])


def _options(
    values: Mapping[str, Any], path: str, signature: Signature, given: Collection[str], engine_keys: list[str], *, needs_all: bool
) -> list[str]:
    options = {option.name: option for option in (*signature.positional[len(given) :], *signature.keywords)}
    passed = {option.name for option in signature.positional[: len(given)]} | set(given)
    problems = []
    for name, value in values.items():
        if name in options:
            problems += _value(f"{path}.{name}", value, options[name].annotation, signature.names)
        elif name in passed:
            problems.append(f"{path}.{name} ({rules.shown(value)}) is passed by the engine; remove it")
        elif not signature.takes_any:
            problems.append(rules.unknown_key(f"{path}.{name}", [*engine_keys, *options], {}))
    missing = [option for option in options.values() if option.required and option.name not in values and needs_all]
    return problems + [_missing(path, option, signature) for option in missing]


def _missing(path: str, option: Option, signature: Signature) -> str:
    kind = _described(option.annotation, signature.names) if option.annotation else "value"
    return f"{path}.{option.name} has no value; add +{path}.{option.name}=<{kind.removeprefix('a ').removeprefix('an ')}>"


def _nested(value: Any, path: str) -> list[str]:
    """Checks the `_target_` nodes that an option holds."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return check(value, path)
        return [line for name, item in value.items() for line in _nested(item, f"{path}.{name}")]
    if isinstance(value, list):
        return [line for place, item in enumerate(value) for line in _nested(item, f"{path}[{place}]")]
    return []


def _value(key: str, value: Any, annotation: ast.expr | None, names: Mapping[str, ast.expr]) -> list[str]:
    # A nested node stands for the object it makes, and `???` is told as a missing value by the caller.
    if annotation is None or value == "???" or (isinstance(value, Mapping) and "_target_" in value):
        return []
    if not _accepts(value, annotation, names):
        hint = rules.did_you_mean(str(value), [str(word) for word in _words(annotation, names)])
        return [f"{key} ({rules.shown(value)}) must be {_described(annotation, names)}{hint}"]
    problems = (rules.problem(key, value, rule) for rule in _rules(annotation, names))
    return [line for line in problems if line]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _parts(annotation: ast.expr, names: Mapping[str, ast.expr]) -> tuple[str, list[ast.expr]]:
    """Takes an annotation apart: its outermost name and arguments; `X | Y` is a Union, an alias is what it stands for."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _parts(_expression(annotation.value), names)
    if isinstance(annotation, ast.Constant):
        return str(annotation.value), []
    if isinstance(annotation, ast.BinOp):
        return "Union", [annotation.left, annotation.right]
    if isinstance(annotation, ast.Subscript):
        arguments = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        name = _parts(annotation.value, {})[0]
        return ("Union", [*arguments, ast.Constant(None)]) if name == "Optional" else (name, arguments)
    if isinstance(annotation, ast.Name) and annotation.id in names:
        # An alias may not stand for itself again, so it is taken out of the names.
        return _parts(names[annotation.id], {key: value for key, value in names.items() if key != annotation.id})
    return str(getattr(annotation, "id", None) or getattr(annotation, "attr", "Any")), []


def _accepts(value: Any, annotation: ast.expr, names: Mapping[str, ast.expr]) -> bool:
    """Whether a value is of the annotated type; what the annotation does not tell is accepted."""
    name, arguments = _parts(annotation, names)
    if name == "Union":
        return any(_accepts(value, argument, names) for argument in arguments)
    if name == "Annotated":
        return _accepts(value, arguments[0], names)
    if name == "Literal":
        return any(isinstance(word, ast.Constant) and word.value == value and type(word.value) is type(value) for word in arguments)
    if name == "None":
        return value is None
    if name in _SCALARS:
        return isinstance(value, _SCALARS[name]) and (name == "bool" or not isinstance(value, bool))
    if name in _LISTS:
        return isinstance(value, list) and _accepts_items(value, name, arguments, names)
    return isinstance(value, Mapping) if name in _DICTS else True


def _accepts_items(value: list[Any], name: str, arguments: list[ast.expr], names: Mapping[str, ast.expr]) -> bool:
    if not arguments:
        return True
    if name in ("tuple", "Tuple") and not _is_ellipsis(arguments[-1]):
        return len(value) == len(arguments) and all(_accepts(item, kind, names) for item, kind in zip(value, arguments, strict=True))
    return all(_accepts(item, arguments[0], names) for item in value)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _described(annotation: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Says in words what is accepted: "an int or null"."""
    name, arguments = _parts(annotation, names)
    if name == "Union":
        return " or ".join(dict.fromkeys(_described(argument, names) for argument in arguments))
    if name == "Annotated":
        return _described(arguments[0], names)
    if name == "Literal":
        return f"one of {', '.join(str(word) for word in _words(annotation, names))}"
    if name in _LISTS:
        kinds = list(dict.fromkeys(_parts(item, names)[0] for item in arguments if not _is_ellipsis(item)))
        size = f"{len(arguments)} " if name in ("tuple", "Tuple") and arguments and not _is_ellipsis(arguments[-1]) else ""
        return f"a list of {size}{' and '.join(kinds)}" if len(kinds) > 0 else "a list"
    if name in _DICTS:
        return "a mapping"
    return {"None": "null", "int": "an int"}.get(name, f"a {name}")


def _words(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[Any]:
    """Gives the words of a Literal, also within a union."""
    name, arguments = _parts(annotation, names)
    if name == "Literal":
        return [word.value for word in arguments if isinstance(word, ast.Constant)]
    inner = arguments if name == "Union" else arguments[:1] if name == "Annotated" else []
    return [word for argument in inner for word in _words(argument, names)]


def _rules(annotation: ast.expr, names: Mapping[str, ast.expr]) -> list[str]:
    """Gives the rules of an `Annotated`, also within a union; those of a list's items count for each item."""
    name, arguments = _parts(annotation, names)
    if name in _LISTS:
        return [f"each: {rule}" for rule in dict.fromkeys(rule for argument in arguments for rule in _rules(argument, names))]
    if name == "Union":
        return [rule for argument in arguments for rule in _rules(argument, names)]
    if name != "Annotated":
        return []
    texts = [item.value for item in arguments[1:] if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [text for text in texts if rules.is_rule(text)] + _rules(arguments[0], names)
