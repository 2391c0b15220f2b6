"""Checks that a user's object has the members that `trainer.protocols` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.errors import ConfigError
from trainer.protocols import Callback, Dataset, Metric, Split, Task

_TASK_METHODS = ("build", "train_step", "eval_step")  # `predict_step` is optional
_TASK_ATTRIBUTES = tuple(Task.__annotations__)


def check_dataset(dataset: Dataset) -> None:
    """Check that a dataset and its splits have every member.

    Raises:
        ConfigError: with a line for each object that lacks some.
    """
    problems = _lacking("dataset", dataset, _members(Dataset))
    for name in ("train", "test"):
        if hasattr(dataset, name):
            problems += _lacking(f"dataset.{name}", getattr(dataset, name), _members(Split))
    if problems:
        raise ConfigError(*problems)


def check_task(task: Task) -> None:
    """Check that a task has every method it needs to be built, trained and evaluated.

    Raises:
        ConfigError: it lacks one.
    """
    if problems := _lacking("task", task, _TASK_METHODS):
        raise ConfigError(*problems)


def check_built_task(task: Task) -> None:
    """Check that a task has every attribute that `build` must leave.

    Raises:
        ConfigError: it lacks one.
    """
    if problems := _lacking("task", task, _TASK_ATTRIBUTES, " after build()"):
        raise ConfigError(*problems)


def check_callback(key: str, callback: Callback) -> None:
    """Check that a callback has every member.

    Raises:
        ConfigError: it lacks one.
    """
    if problems := _lacking(key, callback, _members(Callback)):
        raise ConfigError(*problems)


def check_metric(key: str, metric: Metric) -> None:
    """Check that a metric has every member.

    Raises:
        ConfigError: it lacks one.
    """
    if problems := _lacking(key, metric, _members(Metric)):
        raise ConfigError(*problems)


def _members(protocol: type) -> tuple[str, ...]:
    """Return the names of a protocol's attributes and methods."""
    methods = [name for name in vars(protocol) if not name.startswith("_")]
    return (*protocol.__annotations__, *methods)


def _lacking(key: str, value: Any, names: Sequence[str], when: str = "") -> list[str]:
    """Return one line that names the members that `value` lacks, or nothing."""
    missing = [name for name in names if not hasattr(value, name)]
    if not missing:
        return []
    return [
        f"{key} ({type(value).__name__}) has no {', '.join(missing)}{when}; "
        "add what trainer/protocols.py describes"
    ]
