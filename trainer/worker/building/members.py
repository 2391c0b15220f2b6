"""Checks that a user's object has the members that `trainer.protocols` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.engine.evaluation.misclassified import batch_spec
from trainer.errors import ConfigError
from trainer.protocols import (
    IN_WORDS,
    Acts,
    Callback,
    Dataset,
    Embeds,
    LabelKind,
    Metric,
    SampleMetric,
    Split,
    Stream,
    Task,
    optional,
)

_TASK_METHODS = ("build", "train_step", "eval_step")  # `predict_step` is optional
_TASK_ATTRIBUTES = tuple(Task.__annotations__)
_TASKS = {"class": "classification", "number": "regression", "multilabel": "multilabel"}
_CHANGES = {
    "class": "a dataset of classes (of a table dataset.label_kind=class)",
    "number": "a dataset of numbers (of a table dataset.label_kind=number)",
    "multilabel": "a dataset of several labels (of a table dataset.label_kind=multilabel)",
}


def check_dataset(dataset: Dataset) -> None:
    """Check that a dataset and its splits have every member.

    Raises:
        ConfigError: with a line for each object that lacks some.
    """
    problems = _lacking("dataset", dataset, _members(Dataset))
    for name in ("train", "test"):
        if hasattr(dataset, name):
            split = getattr(dataset, name)
            names = _members(Split)
            if name == "train" and isinstance(split, Stream):
                names = tuple(member for member in names if member != "fetch")
            problems += _lacking(f"dataset.{name}", split, names)
    if problems:
        raise ConfigError(*problems)


def check_task(task: Task) -> None:
    """Check that a task has every method it needs to be built, trained and evaluated.

    Raises:
        ConfigError: it lacks one.
    """
    acts = [*_members(Acts)] if hasattr(task, "act") else []
    embeds = ["predict_step", *_members(Embeds)] if hasattr(task, "project") else []
    # What acts is evaluated by whole episodes, and what embeds by comparing all examples.
    methods = [name for name in _TASK_METHODS if not (acts or embeds) or name != "eval_step"]
    if problems := _lacking("task", task, [*methods, *acts, *embeds]):
        raise ConfigError(*problems)


def check_built_task(task: Task) -> None:
    """Check that a task has every attribute that `build` must leave.

    Raises:
        ConfigError: it lacks one.
    """
    if problems := _lacking("task", task, _TASK_ATTRIBUTES, " after build()"):
        raise ConfigError(*problems)


def check_label_kind(task: Task, kind: LabelKind) -> None:
    """Check that a task can learn labels of a kind.

    Raises:
        ConfigError: it learns others.
    """
    if (wanted := getattr(task, "label_kind", kind)) != kind:
        raise ConfigError(
            f"task ({type(task).__name__}) learns {IN_WORDS[wanted]}, but the dataset's labels are "
            f"{IN_WORDS[kind]}; choose task={_TASKS[kind]}, or {_CHANGES[wanted]}"
        )


def check_labels(task: Task, dataset: Dataset) -> None:
    """Check that both splits have the labels that a task is trained and evaluated on.

    Raises:
        ConfigError: one has none.
    """
    if not hasattr(task, "label_kind"):
        return
    splits = {
        "train": dataset.train,
        "validation": optional(dataset, "validation"),
        "test": dataset.test,
    }
    for name, split in splits.items():
        if isinstance(split, Split) and "label" not in batch_spec(split):
            raise ConfigError(
                f"dataset: the examples of the {name} split have no label, which the task "
                f"({type(task).__name__}) needs to train and to evaluate; add the labels, or use "
                "mode=predict"
            )


def check_variables(task: Task, strategy: tf.distribute.Strategy) -> None:
    """Check that the models' variables were created in the strategy's scope.

    Those of a model that a module creates at its import, before the strategy, for example, were
    not: TensorFlow would neither place them nor keep them alike on all replicas.

    Raises:
        ConfigError: with a line for each model that has such a variable.
    """
    strangers = {
        name: [
            variable.name.partition(":")[0]
            for variable in model.variables
            if isinstance(variable, tf.Variable)
            and not strategy.extended.variable_created_in_scope(variable)
        ]
        for name, model in task.models.items()
    }
    problems = [
        f"task: models has {name}, whose variable {names[0]} was created outside of the strategy; "
        "create the model within its function, which build() calls, not when its module is imported"
        for name, names in strangers.items()
        if names
    ]
    if problems:
        raise ConfigError(*problems)


def check_callback(key: str, callback: Callback) -> None:
    """Check that a callback has every member.

    Raises:
        ConfigError: it lacks one.
    """
    if problems := _lacking(key, callback, _members(Callback)):
        raise ConfigError(*problems)


def check_metric(key: str, metric: Metric | SampleMetric) -> None:
    """Check that a metric of labels or of generated examples has every member.

    Raises:
        ConfigError: it lacks one.
    """
    protocol = SampleMetric if hasattr(metric, "update_samples") else Metric
    if problems := _lacking(key, metric, _members(protocol)):
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
        "add what trainer/protocols/ describes"
    ]
