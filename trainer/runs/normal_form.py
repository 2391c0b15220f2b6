"""Configurations in one form: an absent option has its default, and equal values look the same.

An option that a later version adds is absent in older records: it has the default that its target
or the schema gives it. So an upgrade renames no run, and refuses none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from trainer.config import loading
from trainer.config.options import targets
from trainer.config.schema import ENGINE_KEYS, GROUPS, Experiment, Fault


def leaves(experiment: Experiment) -> dict[str, Any]:
    """Return every value of the configuration by its dotted key."""
    return dict(flatten(loading.plain(experiment)))


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested mappings with its dotted key."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration by dotted key, and after it the defaults of options that it lacks."""
    return _completed(values, {**_schema_defaults(), **_option_defaults(values)})


def differing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that are not the defaults of their options."""
    # A section without choices is {} or null.
    values = {key: value or None if key in GROUPS else value for key, value in values.items()}
    return _differing(values, _schema_defaults())


def normal(value: Any) -> Any:
    """Return a value in the form of all equal ones: 1 for 1.0, a node without its defaults."""
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    if isinstance(value, Mapping):
        return _differing(dict(flatten(value)), {})
    return int(value) if isinstance(value, float) and value.is_integer() else value


def task_groups(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of the nodes of a task, each with the group of its choices."""
    groups = targets.node_groups(values.get("task._target_"))
    return {f"task.{name}": group for name, group in groups.items()}


def _differing(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not the defaults, given those of the schema."""
    values = _without_empty_nodes(values)
    defaults = {**schema, **_option_defaults(values)}
    normalized = {key: normal(value) for key, value in _completed(values, defaults).items()}
    return {
        key: value
        for key, value in normalized.items()
        if key not in defaults or value != normal(defaults[key])
    }


def _without_empty_nodes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for each node of a function that names none."""
    sections = {key.rpartition(".")[0] for key in values if key.endswith("._partial_")}
    empty = {section for section in sections if values.get(f"{section}._target_") is None}
    rest = {key: value for key, value in values.items() if key.rpartition(".")[0] not in empty}
    return {**rest, **dict.fromkeys(empty)}


def _completed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    present = set(values)
    for key in values:
        while "." in key and (key := key.rpartition(".")[0]) not in present:
            present.add(key)
    return {**values, **{key: value for key, value in defaults.items() if key not in present}}


def _option_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of each option of the targets and faults among values, by dotted key."""
    defaults: dict[str, Any] = {}
    groups = task_groups(values)
    for key, target in values.items():
        section, _, last = key.rpartition(".")
        prefix = section and f"{section}."
        options: Mapping[str, Any] = {}
        if last == "_target_":
            group = groups.get(section, section.partition(".")[0])
            engine_keys = dict.fromkeys(ENGINE_KEYS.get(group, ()))
            options = {**engine_keys, **targets.defaults(target)}
        elif last == "action" and section.startswith("fault."):
            options = _FAULT
        defaults |= {f"{prefix}{name}": value for name, value in options.items()}
    return defaults


_FAULT = {name: value for name, value in asdict(Fault()).items() if name != "action"}
"""Not the action, because it says that there is a fault."""


@functools.cache
def _schema_defaults() -> Mapping[str, Any]:
    return leaves(Experiment())
