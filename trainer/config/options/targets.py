"""Checks the options of a `_target_` node against the signature of its target.

The signature is read from source: nothing is imported. No TensorFlow.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import MISSING
from inspect import Parameter, Signature
from typing import Any

from trainer.annotations import Effect
from trainer.config.options import constraints, signatures
from trainer.config.schema import ENGINE_KEYS
from trainer.optional_packages import missing

MODEL_ARGUMENTS = ("input_shape", "num_classes", "dataset", "features")
"""What a model function may request, by the names of its parameters; see `model_arguments`."""

ENGINE_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "model": MODEL_ARGUMENTS,
    "optimizer": ("learning_rate",),
    "schedule": ("peak", "total_steps", "steps_per_epoch"),
    "search": ("context",),
    "loop": ("replicator",),
    "writers": ("run_dir", "position"),
    "checkpoint.save_policy": ("epochs",),
    "fault.action": ("run_dir", "step"),
    "optimizer.groups": ("learning_rate",),
}
"""Arguments that the engine passes to a target, by its group: by position but for a
model's. They are no options."""

_SPECIAL = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")


_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = Parameter.KEYWORD_ONLY


def check(node: Any, path: str, group: str = "") -> list[str]:
    """Check a `_target_` node and the nodes in its options; return the problems, one line each.

    Args:
        group: the group of its choices, or another key of `ENGINE_ARGUMENTS`.
    """
    if node is None:
        return [f"{path} has no value; add {path}=<choice>"]
    if not isinstance(node, Mapping) or not isinstance(target := node.get("_target_"), str):
        return [
            f"{path} ({constraints.format_value(node)}) must be a mapping with a _target_, "
            "the dotted path of a function or class"
        ]
    signature, problem = _read(target, path)
    engine_keys = ENGINE_KEYS.get(group, {})
    values = {name: value for name, value in node.items() if name not in _SPECIAL}
    problems = []
    for name, item in engine_keys.items():
        if name in values:
            problems += _value(f"{path}.{name}", values[name], constraints.of_field(item))
        elif item.default is MISSING:
            problems.append(f"{path}.{name} has no value; add it")
    if signature is None:
        nested = [_nested(value, f"{path}.{name}") for name, value in values.items()]
        return [*problems, *itertools.chain(*nested), *([problem] if problem else [])]
    passed = ENGINE_ARGUMENTS.get(group, ())
    by_position, by_name = model_arguments(signature) if group == "model" else (passed, ())
    positional = [item.name for item in _with_kind(signature, *_BY_POSITION)]
    if len(positional) < len(by_position) and not _with_kind(signature, Parameter.VAR_POSITIONAL):
        problems.append(
            f"{path}._target_ ({target}) is called with ({', '.join(by_position)}), and takes "
            f"{len(positional)} by position; add parameters of these names at its start"
        )
        return problems
    taken = (*positional[: len(by_position)], *by_name)
    options = {name: item for name, item in options_of(signature).items() if name not in taken}
    for name in (name for name in values if name not in engine_keys):
        key = f"{path}.{name}"
        if name in options:
            problems += _option(key, values[name], options[name].annotation)
        elif name in (*taken, *by_position):
            shown = constraints.format_value(values[name])
            problems.append(f"{key} ({shown}) is passed by the engine; remove it")
        elif takes_any(signature):
            problems += _nested(values[name], key)
        else:
            problems.append(constraints.unknown_key(key, [*engine_keys, *options], {}))
    is_partial = "_args_" in node or node.get("_partial_")  # the rest comes with the call
    return problems + [
        f"{path}.{name} has no value; add {_addition(f'{path}.{name}', item.annotation)}"
        for name, item in options.items()
        if item.default is Parameter.empty and name not in values and not is_partial
    ]


def options_of(signature: Signature) -> dict[str, Parameter]:
    """Return the parameters that have names to be passed by."""
    return {item.name: item for item in _with_kind(signature, *_BY_POSITION, _BY_NAME)}


def takes_any(signature: Signature) -> bool:
    """Return whether a signature has `**kwargs`."""
    return bool(_with_kind(signature, Parameter.VAR_KEYWORD))


def _with_kind(signature: Signature, *kinds: Any) -> list[Parameter]:
    return [item for item in signature.parameters.values() if item.kind in kinds]


def model_arguments(signature: Signature | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of `MODEL_ARGUMENTS` a model function gets by position, and which by name.

    Those that it has parameters for, by name. Its first two parameters are the shape and the number
    of classes, under any name, if they have no defaults and neither is in another place.
    """
    slots = MODEL_ARGUMENTS[:2]
    if signature is None:
        return slots, ()
    options = options_of(signature)
    by_name = tuple(name for name in MODEL_ARGUMENTS if name in options)
    by_position = _with_kind(signature, *_BY_POSITION)[:2]
    first = [item.name for item in by_position if item.default is Parameter.empty]
    others = tuple(name for name in by_name if name not in first)
    is_in_place = all(
        name == slot or name not in MODEL_ARGUMENTS
        for name, slot in zip(first, slots, strict=False)
    )
    is_alone = not others or (others != by_name and not set(slots).intersection(others))
    if len(first) == 2 and is_in_place and is_alone:
        return slots, others
    takes_more = bool(_with_kind(signature, Parameter.VAR_POSITIONAL))
    return (slots if takes_more and not options else ()), by_name


def unknown_options(node: Mapping[str, Any], path: str, *, unread: bool = False) -> list[str]:
    """Return the options of a node that its target does not have, by its source.

    Args:
        unread: whether a target whose source is unreadable has none.
    """
    signature, problem = _read(node["_target_"], path)
    if takes_any(signature) if signature else problem or not unread:
        return []
    engine_keys = (key for keys in ENGINE_KEYS.values() for key in keys)
    names = {*_SPECIAL, *engine_keys, *(options_of(signature) if signature else ())}
    return [name for name in node if name not in names]


def takes(target: str, option: str) -> bool | None:
    """Return whether a target has an option; None: its source is unreadable, or it takes any."""
    signature, problem = _read(target, "")
    if signature is None:
        return None if problem is None else False
    return option in options_of(signature) or (None if takes_any(signature) else False)


def missing_package(target: str) -> str | None:
    """Return `missing(*requires)` of a class, or None if its source has no such constant."""
    requires = signatures.constant(target, "requires")
    return missing(*requires) if isinstance(requires, tuple) else None


def defaults(target: Any) -> Mapping[str, Any]:
    """Return the default of each option of a target by name, as far as its source shows them."""
    values = {name: item.default for name, item in _options(target).items()}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if isinstance(value, str | int | float | list | tuple | None) or value == {}
    }


def effect(target: Any, option: str) -> Effect | None:
    """Return the effect that a target states for a change of an option, or None if it does not."""
    options = _options(target)
    return constraints.effect_of(options[option].annotation) if option in options else None


def node_groups(target: Any) -> dict[str, str]:
    """Return the options of a target that are nodes of a task: name -> group of their choices."""
    groups = {
        name: constraints.node_group(item.annotation) for name, item in _options(target).items()
    }
    return {name: group for name, group in groups.items() if group is not None}


def _options(target: Any) -> dict[str, Parameter]:
    """Return the options of a target; none if its source cannot be read."""
    signature = _read(target, "")[0] if isinstance(target, str) else None
    return options_of(signature) if signature else {}


def _read(target: str, path: str) -> tuple[Signature | None, str | None]:
    """Return the signature of a target, if it can be read, and what is wrong with its path."""
    if target == "???":
        return None, None
    try:
        return signatures.read(target), None
    except signatures.TargetError as error:
        return None, f"{path}._target_ ({target}){error}"


def _addition(key: str, hint: Any) -> str:
    if group := constraints.node_group(hint):
        return f"+{group}@{key}=<choice>"
    kind = "value" if hint is Parameter.empty else constraints.in_words(hint)
    return f"+{key}=<{kind.removeprefix('a ').removeprefix('an ')}>"


def _option(key: str, value: Any, hint: Any) -> list[str]:
    group = constraints.node_group(hint)
    if group is None:
        return [*_nested(value, key), *_value(key, value, hint)]
    if isinstance(value, Mapping):
        return check(value, key, group)
    if constraints.accepts(value, hint):
        return []
    shown = constraints.format_value(value)
    return [f"{key} ({shown}) must be a choice; write {group}@{key}=<choice>"]


def _nested(value: Any, path: str) -> list[str]:
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


def _value(key: str, value: Any, hint: Any) -> list[str]:
    # A nested node stands for the object it makes; `???` is reported as a missing value.
    is_node = isinstance(value, Mapping) and "_target_" in value
    if hint is Parameter.empty or value == "???" or is_node:
        return []
    line = constraints.problem(key, value, hint)
    return [line] if line else []
