"""Checks the options of a `_target_` node against the signature of its target.

The signature is read from source: nothing is imported. No TensorFlow.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field
from importlib.util import find_spec
from typing import Any

from trainer.annotations import Effect, Exists, Rule
from trainer.config.options import constraints, option_types, signatures
from trainer.config.options.signatures import Option, Signature
from trainer.config.schema import ENGINE_KEYS

MODEL_ARGUMENTS = ("input_shape", "num_classes", "dataset", "features")
"""What a model function may ask for, by the names of its parameters; see `model_arguments`."""

ENGINE_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "model": MODEL_ARGUMENTS,
    "optimizer": ("learning_rate",),
    "schedule": ("peak", "total_steps", "steps_per_epoch"),
    "search": ("context",),
    "loop": ("replicator",),
    "writers": ("run_dir", "position"),
    "checkpoint.save_policy": ("epochs",),
}
"""Arguments that the engine passes to a target, by position but for a model's: no options."""

_SPECIAL = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")


def check(
    node: Any,
    path: str,
    arguments: Collection[str] = (),
    engine_keys: Mapping[str, Field[Any]] | None = None,
) -> list[str]:
    """Check a `_target_` node and the nodes in its options; return the problems, one line each.

    Args:
        node: the node, as plain containers.
        path: its dotted key.
        arguments: parameters that the engine passes by position, so that they are no options; or
            `MODEL_ARGUMENTS`.
        engine_keys: fields of the schema for the keys of the node that the engine reads itself.
    """
    if node is None:
        return [f"{path} has no value; add {path}=<choice>"]
    if not isinstance(node, Mapping) or not isinstance(target := node.get("_target_"), str):
        return [
            f"{path} ({constraints.format_value(node)}) must be a mapping with a _target_, "
            "the dotted path of a function or class"
        ]
    signature, problem = _signature(target, path)
    own = engine_keys or {}
    values = {name: value for name, value in node.items() if name not in _SPECIAL}
    problems = [
        line
        for name, value in values.items()
        if _holds_targets(signature, name)
        for line in _nested(value, f"{path}.{name}")
    ]
    problems += _check_engine_keys(values, path, own)
    if signature is None:
        return [*problems, *([problem] if problem else [])]
    by_name: tuple[str, ...] = ()
    if arguments == MODEL_ARGUMENTS:
        arguments, by_name = model_arguments(signature)
    if len(signature.positional) < len(arguments) and not signature.takes_more:
        problems.append(
            f"{path}._target_ ({target}) is called with ({', '.join(arguments)}), and takes "
            f"{len(signature.positional)} by position; add parameters of these names at its start"
        )
        return problems
    rest = {name: value for name, value in values.items() if name not in own}
    passed = [*(option.name for option in signature.positional[: len(arguments)]), *by_name]
    options = {name: item for name, item in signature.parameters.items() if name not in passed}
    problems += _check_options(rest, path, signature, options, [*passed, *arguments], list(own))
    if "_args_" in node or node.get("_partial_"):  # the rest comes with the call
        return problems
    return problems + _missing_options(rest, path, signature, options)


def model_arguments(signature: Signature | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of `MODEL_ARGUMENTS` a model function gets by position, and which by name.

    Those that it has parameters for, by name. Its first two parameters are the shape and the number
    of classes, whatever they are called, if they have no defaults and neither is in another place.

    Args:
        signature: that of the function; None: it cannot be told.
    """
    if signature is None:
        return MODEL_ARGUMENTS[:2], ()
    by_name = tuple(name for name in MODEL_ARGUMENTS if name in signature.parameters)
    slots = MODEL_ARGUMENTS[:2]
    first = [option.name for option in signature.positional[:2] if option.required]
    others = tuple(name for name in by_name if name not in first)
    is_in_place = all(
        name == slot or name not in MODEL_ARGUMENTS
        for name, slot in zip(first, slots, strict=False)
    )
    is_alone = not others or (others != by_name and not set(slots).intersection(others))
    if len(first) == 2 and is_in_place and is_alone:
        return slots, others
    return (slots if signature.takes_more and not signature.parameters else ()), by_name


def _check_engine_keys(
    values: Mapping[str, Any], path: str, keys: Mapping[str, Field[Any]]
) -> list[str]:
    problems = []
    for name, item in keys.items():
        key = f"{path}.{name}"
        if name in values:
            annotation = option_types.expression(str(item.type))
            problems += _value(key, values[name], annotation, {}, item.metadata["rules"])
        elif item.default is MISSING:
            problems.append(f"{key} has no value; add it")
    return problems


def unknown_options(node: Mapping[str, Any], path: str, *, unread: bool = False) -> list[str]:
    """Return the options of a node that its target does not have, as far as its source tells.

    Args:
        node: a node with a `_target_`.
        path: its dotted key.
        unread: whether a target whose source does not tell has none.
    """
    signature, problem = _signature(node["_target_"], path)
    if signature.takes_any if signature else problem or not unread:
        return []
    engine_keys = (key for keys in ENGINE_KEYS.values() for key in keys)
    names = {*_SPECIAL, *engine_keys, *(signature.parameters if signature else ())}
    return [name for name in node if name not in names]


def takes(target: str, option: str) -> bool | None:
    """Return whether a target has an option; None: its source does not tell, or it takes any."""
    signature, problem = _signature(target, "")
    if problem is not None:
        return False
    if signature is None:
        return None
    return option in signature.parameters or (None if signature.takes_any else False)


def missing_package(target: str) -> tuple[str, str] | None:
    """Return the package that a class needs and that is missing, and what pip is to install.

    The class names both by its constant `requires`, which is read from its source. None: nothing is
    missing, or the source does not tell.
    """
    package, distribution = (signatures.literals(target, ["requires"]) or {}).get(
        "requires", (None, "")
    )
    with suppress(ModuleNotFoundError):  # a package above it is missing
        if package is None or find_spec(package) is not None:
            return None
    return package, distribution


def defaults(target: Any) -> Mapping[str, Any]:
    """Return the default of each option of a target by name, as far as its source tells them."""
    if not isinstance(target, str):
        return {}
    # A user's own code may be edited while a notebook or a sweep goes on.
    return _own_defaults(target) if target.startswith("trainer.") else _read_defaults(target)


def _read_defaults(target: str) -> Mapping[str, Any]:
    signature, _ = _signature(target, "")
    values: dict[str, Any] = {}
    if signature is None:
        return values
    for name, option in signature.parameters.items():
        default = option.default
        if isinstance(default, ast.Name):
            default = signature.names.get(default.id)
        with suppress(ValueError, TypeError):  # more than a literal
            value = ast.literal_eval(default) if default is not None else ...
            if isinstance(value, str | int | float | list | tuple | None) or value == {}:
                values[name] = list(value) if isinstance(value, tuple) else value
    return values


_own_defaults = functools.cache(_read_defaults)


def effect(target: Any, option: str) -> Effect | None:
    """Return the effect that a target states for a change of an option; None: it states none."""
    signature = _signature(target, "")[0] if isinstance(target, str) else None
    if signature is None or option not in signature.parameters:
        return None
    return option_types.effect(signature.parameters[option].annotation, signature.names)


def node_groups(target: Any) -> dict[str, str]:
    """Return the options of a target that are nodes of a task: name -> group of their choices."""
    return _node_groups(_signature(target, "")[0]) if isinstance(target, str) else {}


def _holds_targets(signature: Signature | None, name: str) -> bool:
    """Return whether the nodes in an option are checked for themselves.

    Not if there is no such option, or if it is a node of a task.
    """
    if signature is None:
        return True
    is_option = name in signature.parameters or signature.takes_any
    return is_option and name not in _node_groups(signature)


def _node_groups(signature: Signature | None) -> dict[str, str]:
    if signature is None:
        return {}
    groups = {
        name: option_types.node_group(option.annotation, signature.names)
        for name, option in signature.parameters.items()
    }
    return {name: group for name, group in groups.items() if group is not None}


def _signature(target: str, path: str) -> tuple[Signature | None, str | None]:
    """Return the signature of a target, if it can be read, and what is wrong with its path."""
    if target == "???":
        return None, None
    try:
        return signatures.read(target), None
    except signatures.TargetError as error:
        separator = " " if str(error).startswith(("must", "is ", "cannot")) else ": "
        return None, f"{path}._target_ ({target}){separator}{error}"


def _check_options(
    values: Mapping[str, Any],
    path: str,
    signature: Signature,
    options: Mapping[str, Option],
    passed: Collection[str],
    engine_keys: list[str],
) -> list[str]:
    problems = []
    for name, value in values.items():
        if name in options:
            problems += _option(f"{path}.{name}", value, options[name], signature.names)
        elif name in passed:
            shown = constraints.format_value(value)
            problems.append(f"{path}.{name} ({shown}) is passed by the engine; remove it")
        elif not signature.takes_any:
            problems.append(constraints.unknown_key(f"{path}.{name}", [*engine_keys, *options], {}))
    return problems


def _missing_options(
    values: Mapping[str, Any], path: str, signature: Signature, options: Mapping[str, Option]
) -> list[str]:
    problems = []
    for option in options.values():
        if option.required and option.name not in values:
            key = f"{path}.{option.name}"
            problems.append(f"{key} has no value; add {_addition(key, option, signature.names)}")
    return problems


def _addition(key: str, option: Option, names: Mapping[str, ast.expr]) -> str:
    """Return the override that gives an option a value."""
    if group := option_types.node_group(option.annotation, names):
        return f"+{group}@{key}=<choice>"
    kind = option_types.type_in_words(option.annotation, names) if option.annotation else "value"
    return f"+{key}=<{kind.removeprefix('a ').removeprefix('an ')}>"


def _option(key: str, value: Any, option: Option, names: Mapping[str, ast.expr]) -> list[str]:
    """Check the value of an option, which may be a node of a task."""
    group = option_types.node_group(option.annotation, names)
    if group is None:
        return _value(key, value, option.annotation, names)
    if not isinstance(value, Mapping):
        accepted = option.annotation is not None and option_types.accepts(
            value, option.annotation, names
        )
        shown = constraints.format_value(value)
        problem = f"{key} ({shown}) must be a choice; write {group}@{key}=<choice>"
        return [] if accepted else [problem]
    return check(value, key, ENGINE_ARGUMENTS.get(group, ()), ENGINE_KEYS.get(group))


def _nested(value: Any, path: str) -> list[str]:
    """Check the `_target_` nodes that an option holds."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return check(value, path) if value["_target_"] is not None else _without(value, path)
        return [line for name, item in value.items() for line in _nested(item, f"{path}.{name}")]
    if isinstance(value, list):
        return [
            line for index, item in enumerate(value) for line in _nested(item, f"{path}[{index}]")
        ]
    return []


def _without(node: Mapping[str, Any], path: str) -> list[str]:
    """Return what is wrong with a node that stands for nothing: its `_target_` is null."""
    options = [f"{path}.{name}" for name in node if name not in _SPECIAL]
    return [f"{option} is set, and {path}._target_ (null) names no function" for option in options]


def _value(
    key: str,
    value: Any,
    annotation: ast.expr | None,
    names: Mapping[str, ast.expr],
    more: Sequence[Rule] = (),
) -> list[str]:
    # A nested node stands for the object it makes; the caller reports `???` as a missing value.
    if annotation is None or value == "???" or (isinstance(value, Mapping) and "_target_" in value):
        return []
    if not option_types.accepts(value, annotation, names):
        hint = constraints.did_you_mean(
            str(value), [str(word) for word in option_types.words(annotation, names)]
        )
        accepted = option_types.type_in_words(annotation, names)
        return [f"{key} ({constraints.format_value(value)}) must be {accepted}{hint}"]
    if text := option_types.rule_as_text(annotation):
        return [
            f"{key}: its signature states the rule {text!r} as text, which is not checked; write "
            "an object of trainer.annotations, such as Ge(1)"
        ]
    rules = [*option_types.rules(annotation, names), *more]
    nullable = option_types.accepts(None, annotation, names)
    # A text that is neither optional nor a path, such as a separator, may be empty.
    is_name = nullable or any(isinstance(rule, Exists) for rule in rules)
    if is_name and (line := constraints.check_empty(key, value, nullable=nullable)):
        return [line]
    line = constraints.check_value(key, value, *rules)
    return [line] if line else []
