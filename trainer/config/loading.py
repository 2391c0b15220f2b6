"""From a configuration that Hydra composed to a checked experiment, and back. No TensorFlow."""

from __future__ import annotations

import functools
import itertools
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.options import constraints, targets
from trainer.config.rules import check, env, loop
from trainer.config.rules.groups import OPTIONAL_GROUPS, TARGET_GROUPS
from trainer.config.schema import GROUPS, Experiment, Fault
from trainer.errors import ConfigError

_SEVERAL = ("callbacks", "metrics", "writers")
"""Groups in which several may be chosen."""


def load(
    cfg: DictConfig, choices: Mapping[str, Any], overrides: Iterable[tuple[str, str]] = ()
) -> Experiment:
    """Check a composed configuration and return it as an experiment of plain containers.

    Args:
        cfg: as Hydra composed it, without Hydra's own section.
        choices: the choice in each group, as Hydra records it.
        overrides: key and value of each override of the command line.

    Raises:
        ConfigError: with every problem found.
    """
    container: Any = OmegaConf.to_container(cfg, resolve=True)
    overrides = list(overrides)
    _drop_options_of_replaced_targets(container, [name for name, _ in overrides])
    problems = _unknown_keys(container, Experiment, "", _known_keys(container, Experiment))
    problems += [
        f"{name} has no value; add {name}=<value>" for name in sorted(OmegaConf.missing_keys(cfg))
    ]
    problems += _check_switches(overrides)
    problems += _check_twice(container, overrides)
    problems += _check_faults(container)
    problems += _check_nested_groups(container, choices)
    if container.get("choices") is not None:
        problems.append("choices is filled in by the program; remove it")
    experiment = restore({name: value for name, value in container.items() if name != "choices"})
    experiment.callbacks = experiment.callbacks or {}
    experiment.metrics = experiment.metrics or {}
    experiment.writers = experiment.writers or {}
    experiment.choices = _recorded_choices(choices)
    if isinstance(experiment.dataset, Mapping) and experiment.dataset.get("validation", 0) is None:
        experiment.dataset = {**experiment.dataset}
        del experiment.dataset["validation"]  # as where nobody wrote it: it names the same run
    loop.remove_unused(experiment)
    env.remove_unused(experiment)
    if loop.name_of(experiment) is None:
        problems += _check_left_out(experiment, choices)
    problems += [
        *loop.check(experiment, overrides),
        *env.check(experiment, overrides),
        *check(experiment),
    ]
    if problems:
        raise ConfigError(*problems)
    return experiment


def restore(container: Mapping[str, Any]) -> Experiment:
    """Return the experiment of plain containers as `plain` returns them; drop unknown keys."""
    values = _known_keys(container, Experiment)
    free = {
        name: values.pop(name)
        for name, kind in _fields(Experiment).items()
        if kind is Any and name in values
    }
    # Merging takes long: it is left to values that are not the schema's own.
    changed = _changed(values, _defaults())
    experiment = OmegaConf.to_object(OmegaConf.unsafe_merge(pickle.loads(_schema()), changed))
    assert isinstance(experiment, Experiment)
    for name, value in free.items():
        setattr(experiment, name, value)
    faults = experiment.fault if isinstance(experiment.fault, Mapping) else {}
    experiment.fault = {name: fault for name, node in faults.items() if (fault := _fault(node))}
    return experiment


@functools.cache
def _schema() -> bytes:
    """Return the schema, pickled: unpickling it takes less time than making or copying it."""
    return pickle.dumps(OmegaConf.structured(Experiment), pickle.HIGHEST_PROTOCOL)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the values of the schema, which must not be changed."""
    return plain(Experiment())


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the defaults, if only in type: 1, 1.0 and true."""
    return {
        name: _changed(value, defaults[name])
        if isinstance(value, Mapping) and isinstance(defaults[name], Mapping)
        else value
        for name, value in values.items()
        if repr(value) != repr(defaults[name])
    }


def plain(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as plain containers, for YAML or JSON."""
    return asdict(experiment)


def _drop_options_of_replaced_targets(container: dict[str, Any], names: Collection[str]) -> None:
    """Remove the options of a choice that do not belong to the target that replaces its own.

    Nobody has written them: `model._target_=my.net` leaves those of `model=cnn` in the node.
    """
    for group in TARGET_GROUPS:
        node = container.get(group)
        if f"{group}._target_" in names and isinstance(node, dict):
            # Models of Keras' own are named so; other targets there have much the same options.
            for option in targets.unknown_options(node, group, unread=group == "model"):
                if not any(f"{name}.".startswith(f"{group}.{option}.") for name in names):
                    del node[option]


def _check_switches(overrides: Iterable[tuple[str, str]]) -> list[str]:
    """Return the switches that are set to another number than 0 and 1: OmegaConf takes any."""
    defaults = _defaults()
    return [
        f"{name} ({text}) must be true or false"
        for name, text in overrides
        if isinstance(value_at(defaults, name), bool) and re.fullmatch(r"(?![01]$)[-+.\d_e]+", text)
    ]


def _check_twice(container: Mapping[str, Any], overrides: Iterable[tuple[str, str]]) -> list[str]:
    """Return what is chosen twice, or set under two names, where several may be chosen."""
    words = [(key, value.strip("[] ").split(",")) for key, value in overrides if key in _SEVERAL]
    return [
        f"{group} names {name} twice; remove one of them"
        for group, names in words
        for name in sorted({name for name in names if names.count(name) > 1})
    ] + [
        f"{group}.{name} is the same as {group}.{other}; remove one of them"
        for group in _SEVERAL
        if isinstance(nodes := container.get(group), Mapping)
        for (other, earlier), (name, node) in itertools.combinations(nodes.items(), 2)
        if node == earlier and isinstance(node, Mapping)
    ]


def _check_faults(container: Mapping[str, Any]) -> list[str]:
    """Return the wrong keys and types in `fault`.

    It is a free mapping to Hydra, which cannot add a fault to a typed one.
    """
    faults = container.get("fault") or {}
    if not isinstance(faults, Mapping):
        return [
            f"fault ({faults}) must be a mapping from names to faults; "
            "choose one with fault=<choice>"
        ]
    problems = []
    for name, node in faults.items():
        example = "{action:kill,process:chief,phase:step,at:75}"
        if not isinstance(node, Mapping):
            problems.append(
                f"fault.{name} ({constraints.format_value(node)}) must be a mapping; "
                f"write +fault.{name}={example}"
            )
            continue
        if not node:
            problems.append(f"fault.{name} ({{}}) is empty; write +fault.{name}={example}")
        hints = _fields(Fault)
        for key, value in node.items():
            if key not in hints:
                problems.append(constraints.unknown_key(f"fault.{name}.{key}", hints, {}))
            elif _fault({key: value}) is None:
                kind = {int: "an int", float: "a float"}.get(hints[key], "a str")
                problems.append(
                    f"fault.{name}.{key} ({constraints.format_value(value)}) must be {kind}"
                )
    return problems


def _check_nested_groups(container: Mapping[str, Any], choices: Mapping[str, Any]) -> list[str]:
    """Return the groups within groups whose choice a plain value has replaced; null is allowed.

    Args:
        container: the configuration.
        choices: as in `load`: `dataset/normalize`, or `model/block@model.stem` for another key.
    """
    problems = []
    for name in sorted(name for name in choices if "/" in name and not name.startswith("hydra/")):
        group, _, other_key = name.partition("@")
        key = other_key or group.replace("/", ".")
        node = value_at(container, key)
        if node is not None and not isinstance(node, Mapping):
            problems.append(
                f"{key} ({constraints.format_value(node)}) must be a mapping; set its options with "
                f"{key}.<option>=<value>, or choose one with {name}=<choice>"
            )
    return problems


def _check_left_out(experiment: Experiment, choices: Mapping[str, Any]) -> list[str]:
    """Return the groups without a value that the task needs.

    It does not need one if it has nodes of the group, or if a file chooses nothing in it
    (`override /model@_global_.model: null`).
    """
    task = experiment.task if isinstance(experiment.task, Mapping) else {}
    own = set(targets.node_groups(task.get("_target_")).values())
    return [
        f"{group} has no value; add {group}=<choice>"
        for group in OPTIONAL_GROUPS
        if getattr(experiment, group) is None and group not in own and group not in choices
    ]


def _recorded_choices(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice in each group, and by their dotted key those of the nodes of a task."""
    recorded = {group: _plain_choice(choices.get(group)) for group in GROUPS}
    for name, choice in reversed(list(choices.items())):  # Hydra records the last one first
        group, _, key = name.partition("@")
        if group.partition("/")[0] in GROUPS and key.startswith("task."):
            recorded[key] = _plain_choice(choice)
    return recorded


def value_at(container: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, or None."""
    node: Any = container
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _fault(node: Any) -> Fault | None:
    """Return the fault of a plain container, or None if it is not one."""
    try:
        fault = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Fault), node))
    except (OmegaConfBaseException, ValueError, TypeError):
        return None
    return fault if isinstance(fault, Fault) else None


def _unknown_keys(
    node: Mapping[str, Any], schema: type, path: str, root: Mapping[str, Any]
) -> list[str]:
    """Return an error line for each unknown key: `+key=` and `++key=` bypass Hydra's own check."""
    problems = []
    kinds = _fields(schema)
    for name, value in node.items():
        if name not in kinds:
            problems.append(constraints.unknown_key(f"{path}{name}", kinds, root))
        elif is_dataclass(kinds[name]) and isinstance(value, Mapping):
            problems += _unknown_keys(value, kinds[name], f"{path}{name}.", root)
    return problems


def _known_keys(node: Mapping[str, Any], schema: type) -> dict[str, Any]:
    """Return the keys that the schema has and that have a value."""
    kinds = _fields(schema)
    return {
        name: _known_keys(value, kinds[name])
        if is_dataclass(kinds[name]) and isinstance(value, Mapping)
        else value
        for name, value in node.items()
        if name in kinds and value != "???"
    }


@functools.cache
def _fields(schema: type) -> dict[str, Any]:
    hints = get_type_hints(schema)
    return {item.name: hints[item.name] for item in fields(schema)}


def _plain_choice(choice: Any) -> Any:
    return OmegaConf.to_container(choice) if OmegaConf.is_config(choice) else choice
