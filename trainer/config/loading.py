"""From a configuration that Hydra composed to a checked experiment, and back. No TensorFlow.

Hydra composes values of any kind; their types, ranges and unknown keys are checked here alone
(docs/adr/0006-options-are-signatures.md explains why not pydantic).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from trainer.config import rules
from trainer.config.options import constraints
from trainer.config.schema import GROUPS, NAMED_GROUPS, Experiment
from trainer.errors import ConfigError

_SWITCHES = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}


def load(
    cfg: DictConfig,
    choices: Mapping[str, Any],
    overrides: Iterable[tuple[str, str]] = (),
    problems: Iterable[str] = (),
) -> Experiment:
    """Check a composed configuration and return it as an experiment of plain containers.

    Raises:
        ConfigError: with every problem found.
    """
    container: Any = OmegaConf.to_container(cfg, resolve=True)
    overrides = list(overrides)
    reader = _Reader(container)
    experiment = _read(reader, container)
    problems = [*problems, *reader.unknown]
    problems += [
        f"{name} has no value; add {name}=<value>" for name in sorted(OmegaConf.missing_keys(cfg))
    ]
    problems += rules.check_twice(container, overrides)
    problems += _check_nested_groups(container, choices)
    if container.get("choices") is not None:
        problems.append("choices is filled in by the program; remove it")
    experiment.choices = _recorded_choices(choices)
    if isinstance(experiment.dataset, Mapping) and experiment.dataset.get("validation", 0) is None:
        experiment.dataset = {**experiment.dataset}
        del experiment.dataset["validation"]  # as where it is not set: it names the same run
    not_used = list(rules.check_unused(experiment, overrides))
    rules.remove_unused(experiment)
    problems += rules.check_left_out(experiment, choices)
    problems += [*reader.wrong, *reader.check()]
    if reader.wrong:  # rules across keys need values of the right types
        problems += rules.check_groups(experiment)
    else:
        problems += [*not_used, *rules.check(experiment)]
    if problems:
        raise ConfigError(*problems)
    return experiment


def restore(container: Mapping[str, Any]) -> Experiment:
    """Return the experiment of `plain`, without unknown keys; raise a ConfigError at a bad type."""
    reader = _Reader(container)
    experiment = _read(reader, container)
    if reader.wrong:
        raise ConfigError(*reader.wrong)
    return experiment


def _read(reader: _Reader, container: Mapping[str, Any]) -> Experiment:
    experiment: Experiment = reader.section(Experiment, container)
    for group in (*NAMED_GROUPS, "fault"):
        setattr(experiment, group, getattr(experiment, group) or {})
    return experiment


def plain(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as plain containers, for YAML or JSON."""
    return dataclasses.asdict(experiment)


def _check_nested_groups(container: Mapping[str, Any], choices: Mapping[str, Any]) -> list[str]:
    """Return the groups within groups whose choice a plain value has replaced; null is allowed.

    Args:
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


def _plain_choice(choice: Any) -> Any:
    return OmegaConf.to_container(choice) if OmegaConf.is_config(choice) else choice


class _Reader:
    """Reads one configuration, and collects the problems.

    Attributes:
        wrong: a line for each value that is empty, or not of the type of its key, and so left out.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.unknown: list[str] = []
        self.wrong: list[str] = []
        self._root = root
        self._read: list[tuple[str, Any, Any]] = []

    def section(self, schema: type, values: Any, key: str = "") -> Any:
        """Return a dataclass of the schema; absent and wrong values have their defaults."""
        if not isinstance(values, Mapping):
            line = constraints.problem(key, values, Mapping)
            self.wrong.append(f"{line}; set a key in it, {key}.<key>=<value>")
            return schema()
        hints = hints_of(schema)
        arguments = {}
        for name, value in values.items():
            path = f"{key}.{name}" if key else str(name)
            if name not in hints:
                self.unknown.append(constraints.unknown_key(path, hints, self._root))
            elif value != "???":  # it is reported as missing
                converted = self._value(hints[name], value, path)
                nullable = constraints.accepts(None, hints[name])
                if line := constraints.check_empty(path, value, nullable=nullable):
                    self.wrong.append(line)
                elif constraints.accepts(converted, hints[name]):
                    arguments[name] = converted
                    self._read.append((path, converted, hints[name]))
                else:
                    self.wrong += filter(None, [constraints.problem(path, value, hints[name])])
        return schema(**arguments)

    def check(self) -> Iterator[str]:
        """Yield a line for each value that violates a rule of its key."""
        for key, value, hint in self._read:
            is_value = not (isinstance(value, Mapping) or dataclasses.is_dataclass(value))
            if is_value and (line := constraints.problem(key, value, hint)):
                yield line

    def _value(self, hint: Any, value: Any, key: str) -> Any:
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.section(hint, value, key)
        if isinstance(value, Mapping) and (item := _section_of_items(hint)):
            return {name: self.section(item, node, f"{key}.{name}") for name, node in value.items()}
        return _converted(value, hint)


@functools.cache
def hints_of(schema: type) -> Mapping[str, Any]:
    """Return the type of each key of a section by name, with its rules."""
    hints = get_type_hints(schema)
    rules = {field.name: field.metadata["rules"] for field in dataclasses.fields(schema)}
    return {
        name: Annotated[hints[name], *notes] if notes else hints[name]
        for name, notes in rules.items()
    }


def _section_of_items(hint: Any) -> Any:
    """Return `Fault` for `dict[str, Fault] | None`, or None."""
    mappings = (option for option in (hint, *get_args(hint)) if get_origin(option) is dict)
    items = (get_args(mapping)[1] for mapping in mappings)
    return next((item for item in items if dataclasses.is_dataclass(item)), None)


def _converted(value: Any, hint: Any) -> Any:
    """Return a value as the first type of its key that it can be: 1.0 for 1, 5 for "5".

    A variable of the environment is a text, and a name such as 5 looks like a number. What cannot
    be converted stays as it is.
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if type(value) in kinds or Any in kinds:
        return value
    for kind in kinds:
        with suppress(TypeError, ValueError, LookupError):
            return _as_kind(value, kind)
    return value


def _as_kind(value: Any, kind: Any) -> Any:
    is_scalar = isinstance(value, str | int | float)
    if kind is bool:
        return _SWITCHES[str(value).lower()]
    if kind is str and is_scalar:
        return str(value)
    if kind in (int, float) and type(value) in (int, str):
        return kind(value)
    if get_origin(kind) is list and isinstance(value, list | tuple):
        return [_converted(item, *get_args(kind)) for item in value]
    raise TypeError
