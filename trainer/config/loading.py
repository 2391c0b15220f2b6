"""From a configuration that Hydra composed to a checked experiment, and back. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from trainer.config import rules
from trainer.config.options import constraints
from trainer.config.schema import GROUPS, NAMED_GROUPS, Experiment
from trainer.config.validation import Reader
from trainer.errors import ConfigError


def load(
    cfg: DictConfig,
    choices: Mapping[str, Any],
    overrides: Iterable[tuple[str, str]] = (),
    problems: Iterable[str] = (),
) -> Experiment:
    """Check a composed configuration and return it as an experiment of plain containers.

    Args:
        cfg: as Hydra composed it, without Hydra's own section.
        choices: the choice in each group, as Hydra records it.
        overrides: key and value of each override of the command line.
        problems: what has been found already, one line each.

    Raises:
        ConfigError: with every problem found.
    """
    container: Any = OmegaConf.to_container(cfg, resolve=True)
    overrides = list(overrides)
    reader = Reader(container)
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
        del experiment.dataset["validation"]  # as where nobody wrote it: it names the same run
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
    reader = Reader(container)
    experiment = _read(reader, container)
    if reader.wrong:
        raise ConfigError(*reader.wrong)
    return experiment


def _read(reader: Reader, container: Mapping[str, Any]) -> Experiment:
    experiment: Experiment = reader.section(Experiment, container)
    for group in (*NAMED_GROUPS, "fault"):
        setattr(experiment, group, getattr(experiment, group) or {})
    return experiment


def plain(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as plain containers, for YAML or JSON."""
    return asdict(experiment)


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
