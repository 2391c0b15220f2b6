"""Checks of the user's objects: their members, and the values of examples in memory.

Each raises a ConfigError with a line for each problem. The values are checked before training,
because TensorFlow names no example, or none.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.config.schema import Experiment
from trainer.engine.graph.input.feature_specs import feature_specs, feature_words, fetched_specs
from trainer.errors import ConfigError
from trainer.protocols import (
    EVENTS,
    IN_WORDS,
    CallbackDefaults,
    Dataset,
    DatasetDefaults,
    LabelKind,
    LoopDefaults,
    Split,
    SplitDefaults,
    Stream,
    Task,
    TaskDefaults,
    lacking,
    names_of,
    with_defaults,
)
from trainer.text import did_you_mean

_log = logging.getLogger(__name__)

_LIBRARIES = ("keras", "tf_keras", "tensorflow", "trainer")
_OWN_LOSS = ("train_step", "compute_loss")
_BY_POSITION = inspect.Parameter.POSITIONAL_OR_KEYWORD
_TASK_ATTRIBUTES = tuple(Task.__annotations__)
_TASKS: dict[LabelKind | None, str] = {
    "class": "classification",
    "number": "regression",
    "multilabel": "multilabel",
    None: "keras",
}
_CHANGES: dict[LabelKind | None, str] = {
    "class": "a dataset of classes (dataset.label_kind=class)",
    "number": "a dataset of numbers (dataset.label_kind=number)",
    "multilabel": "a dataset of several labels (dataset.label_kind=multilabel)",
}


def check_dataset(dataset: Dataset) -> None:
    """Check that a dataset and its splits have every member."""
    problems = lacking("dataset", dataset, names_of(Dataset))
    for name in ("train", "test"):
        if hasattr(dataset, name):
            split = getattr(dataset, name)
            names = names_of(Split)
            if name == "train" and isinstance(split, Stream):
                names = tuple(member for member in names if member != "fetch")
            problems += lacking(f"dataset.{name}", split, names)
    if problems:
        raise ConfigError(*problems)


def check_has(key: str, value: object, names: Sequence[str]) -> None:
    """Check that an object has some members."""
    if problems := lacking(key, value, names):
        raise ConfigError(*problems)


def check_callback(key: str, callback: object) -> None:
    """Check that a callback is called at all, and at nothing that there is not."""
    if problems := list(_callback_problems(f"{key} ({type(callback).__name__})", callback)):
        raise ConfigError(*problems)


def _callback_problems(name: str, callback: Any) -> Iterator[str]:
    if hasattr(callback, "set_model"):
        yield (
            f"{name} is a callback of Keras; write callbacks=keras "
            f"callbacks.keras.callback._target_={type(callback).__module__}."
            f"{type(callback).__qualname__}, and its options there"
        )
        return
    view = with_defaults(callback, CallbackDefaults)
    for member in dir(callback):
        if member.startswith("on_") and member not in EVENTS:
            yield (
                f"{name} has {member}, which is never called{did_you_mean(member, EVENTS)}; the "
                f"events are {', '.join(EVENTS)}"
            )
    methods = {event: getattr(view, event) for event in EVENTS}
    if not any(methods.values()) and view.adjust_learning_rate is None:
        yield f"{name} has none of {', '.join(EVENTS)}, adjust_learning_rate; add one"
    for event, method in methods.items():
        if method is not None and not _takes(method, len(EVENTS[event])):
            yield (
                f"{name}: {event}{inspect.signature(method)} is called with "
                f"({', '.join(EVENTS[event])}); let it take these alone"
            )
    every: Any = view.every
    if view.on_step is not None and (type(every) is not int or every < 1):
        yield (
            f"{name}: every ({every}) must be an integer >= 1, the number of steps from one "
            "on_step to the next; add the attribute, e.g. every = 100"
        )


def _takes(method: Any, count: int) -> bool:
    """Return whether a method takes so many arguments by position, and no more."""
    signature = inspect.signature(method)
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    kinds = [x.kind for x in signature.parameters.values()]
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, _BY_POSITION) for kind in kinds) <= count


def check_built_task(task: Task, dataset: Dataset) -> None:
    """Check that a task can be evaluated, and has every attribute that `build` must leave."""
    is_evaluated_otherwise = (
        with_defaults(task, TaskDefaults).make_evaluator
        or with_defaults(dataset, LoopDefaults).make_evaluator
    )
    problems = [] if is_evaluated_otherwise else lacking("task", task, ["eval_step"])
    problems = problems or lacking("task", task, _TASK_ATTRIBUTES, " after build()")
    if problems:
        raise ConfigError(*problems)


def check_label_kind(task: Task, kind: LabelKind | None) -> None:
    """Check that a task can learn labels of a kind; None: they may be anything."""
    wanted = with_defaults(task, TaskDefaults).label_kind or kind
    if wanted != kind:
        raise ConfigError(
            f"task ({type(task).__name__}) learns {IN_WORDS[wanted]}, but the dataset's labels are "
            f"{IN_WORDS[kind]}; choose task={_TASKS[kind]}, or {_CHANGES[wanted]}"
        )


def check_features(task: Task, dataset: Dataset, experiment: Experiment) -> None:
    """Check that a task and a model of ours can use all that an example has."""
    own = with_defaults(task, TaskDefaults)
    specs = feature_specs(dataset)
    is_single = isinstance(specs, tf.TensorSpec) and specs.dtype != tf.string
    target = (experiment.model or {}).get("_target_", "")
    users = {
        f"task ({type(task).__name__})": own.single_input,
        f"model ({target})": target.startswith("trainer.models.") and "saved" not in target,
    }
    for user, needs_single in users.items():
        if needs_single and not is_single:
            raise ConfigError(
                f"{user} needs features that are one tensor of numbers, those of the dataset are "
                f"{feature_words(specs)}; choose another, or join them in the dataset"
            )
    if experiment.jit and any(spec.dtype == tf.string for spec in tf.nest.flatten(specs)):
        raise ConfigError(
            "jit (true) compiles no texts, which the dataset's features have; add jit=false, or "
            "make numbers of them in the dataset"
        )
    uses_weights = own.label_kind is None and not own.single_input
    if with_defaults(dataset, DatasetDefaults).weighted and not uses_weights:
        raise ConfigError(
            f"task ({type(task).__name__}) does not use the sample weights of the dataset; choose "
            "task=keras, or leave them out of what the dataset's function returns"
        )


def check_labels(task: Task, dataset: Dataset) -> None:
    """Check that both splits have the labels that a task is trained and evaluated on."""
    if with_defaults(task, TaskDefaults).label_kind is None:
        return
    splits = {
        "train": dataset.train,
        "validation": with_defaults(dataset, DatasetDefaults).validation,
        "test": dataset.test,
    }
    for name, split in splits.items():
        if isinstance(split, Split) and "label" not in fetched_specs(split):
            raise ConfigError(
                f"dataset: the examples of the {name} split have no label, which the task "
                f"({type(task).__name__}) needs to train and to evaluate; add the labels, or use "
                "mode=predict"
            )


def check_variables(task: Task, strategy: tf.distribute.Strategy) -> None:
    """Check that the models' variables were created in the strategy's scope.

    Those of a model that a module creates at its import, before the strategy, for example, were
    not: TensorFlow would neither place them nor keep them equal on all replicas.
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


class _Outputs(NamedTuple):
    """What labels are compared with.

    Attributes:
        ignored: a label that the loss leaves out; or None if it is not set.
    """

    shape: tuple[int | None, ...]
    ignored: Any = None


def warn_of_missing_numbers(dataset: Dataset) -> None:
    """Warn of numbers in memory that are not finite: the first loss will not be either."""
    for name, split in _splits(dataset):
        for part, nest in (with_defaults(split, SplitDefaults).arrays or {}).items():
            for array in tf.nest.flatten(nest):
                if not isinstance(array, np.ndarray):  # rows of several sizes
                    continue
                # The sum is fast, and finite only if all is; it may overflow.
                with np.errstate(over="ignore", invalid="ignore"):
                    if array.dtype.kind != "f" or np.isfinite(array.sum()):
                        continue
                wrong = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                if wrong.any():
                    _log.warning(
                        "dataset: %d of %d examples of the %s split have NaN or infinity in %s, "
                        "the first is number %d; remove or fill them in",
                        *(wrong.sum(), len(array), name, part, wrong.argmax()),
                    )


def check_classes(task: Task, dataset: Dataset, loss: Any = None) -> None:
    """Check that labels in memory are classes that the model can predict.

    Args:
        loss: the configured loss of a Keras model; None: that it was compiled with.
    """
    # Of the class: a Keras task has that of its dataset, for any loss.
    learns_classes = with_defaults(type(task), TaskDefaults).label_kind == "class"
    if learns_classes:
        outputs: _Outputs | None = _Outputs((None, dataset.num_classes))
        if dataset.num_classes == 1:
            names = with_defaults(dataset, DatasetDefaults).class_names or ["0"]
            raise ConfigError(
                f"dataset: all examples are of one class ({names[0]}), so that there is nothing to "
                "learn; add examples of another, or choose another task"
            )
    else:
        outputs = _sparse_outputs(task, loss)
    if outputs is None:
        return
    problems = []
    for name, split in _splits(dataset):
        labels = with_defaults(split, SplitDefaults).labels
        if labels is None or (learns_classes and np.ndim(labels) > 1):
            continue  # or the fraction of each class, which such tasks take too
        if line := _problem(np.asarray(labels), outputs):
            problems.append(f"dataset: the labels of the {name} split {line}")
    if problems:
        raise ConfigError(*problems)


def _problem(labels: np.ndarray, outputs: _Outputs) -> str | None:
    """Return what is wrong with labels of examples, [N, ...], as the rest of a sentence."""
    shape, ignored = outputs
    count = int(shape[-1] or 0)
    if labels.dtype.kind not in "iubf":
        return f"are texts ({labels.item(0)!r}); number the classes from 0"
    if count > 1 and labels.shape[1:] == tuple(shape[1:]):
        return (
            f"are one-hot ({'x'.join(map(str, labels.shape))}), and the loss takes numbers of "
            "classes; choose loss=categorical_crossentropy, or number the classes from 0"
        )
    with np.errstate(invalid="ignore"):
        wrong = ~((labels >= 0) & (labels < count))
    if ignored is not None:
        wrong &= labels != ignored
    if not wrong.any():
        return None
    first = np.unravel_index(wrong.argmax(), wrong.shape)
    return (
        f"have {labels[first]} (example {first[0]}), and the classes are numbered from 0 to "
        f"{count - 1}; correct the labels, or the number of the model's outputs"
    )


def _sparse_outputs(task: Task, loss: Any) -> _Outputs | None:
    """Return the outputs of a Keras model, if its loss takes numbers of classes."""
    models = list(task.models.values())
    own = getattr(models[0], "keras_model", models[0]) if len(models) == 1 else None
    loss = loss if loss is not None else getattr(own, "loss", None)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if own is None or name.lower().replace("_", "") != "sparsecategoricalcrossentropy":
        return None
    kinds = (
        kind for kind in type(own).__mro__ if kind.__module__.partition(".")[0] not in _LIBRARIES
    )
    if any(member in vars(kind) for kind in kinds for member in _OWN_LOSS):
        return None  # the labels may be changed there
    try:
        shape = own.output_shape
    except (AttributeError, ValueError, RuntimeError):  # it is known only once it is called
        return None
    if not isinstance(shape, tuple) or not isinstance(shape[-1], int):
        return None
    ignored = loss.get_config().get("ignore_class") if hasattr(loss, "get_config") else None
    return _Outputs(shape, ignored)


def _splits(dataset: Dataset) -> Iterator[tuple[str, Any]]:
    validation = with_defaults(dataset, DatasetDefaults).validation
    splits = {"train": dataset.train, "validation": validation, "test": dataset.test}
    yield from ((name, split) for name, split in splits.items() if split is not None)
