"""Checks the values of examples in memory before training: TensorFlow names no example, or none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import (
    Dataset,
    DatasetDefaults,
    SplitDefaults,
    Task,
    TaskDefaults,
    with_defaults,
)

_log = logging.getLogger(__name__)

_LIBRARIES = ("keras", "tf_keras", "tensorflow", "trainer")
_OWN_LOSS = ("train_step", "compute_loss")


class _Outputs(NamedTuple):
    """What labels are compared with.

    Attributes:
        shape: of a batch of outputs, whose last dimension counts the classes.
        ignored: a label that the loss leaves out; or None if it is not set.
    """

    shape: tuple[int | None, ...]
    ignored: Any = None


def warn_of_missing_numbers(dataset: Dataset) -> None:
    """Warn of numbers in memory that are not finite: the first loss will not be either."""
    for name, split in _splits(dataset):
        for part, nest in (with_defaults(split, SplitDefaults).arrays or {}).items():
            for array in filter(_is_array, tf.nest.flatten(nest)):
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


def _is_array(column: Any) -> bool:
    return isinstance(column, np.ndarray)  # not rows of several sizes


def check_classes(task: Task, dataset: Dataset, loss: Any = None) -> None:
    """Check that labels in memory are classes that the model can predict.

    Args:
        task: the task, built; unless it learns classes, its loss must tell.
        loss: the configured loss of a Keras model; None: that it was compiled with.

    Raises:
        ConfigError: a label is none, or all are of one class.
    """
    # Of the class: a Keras task has that of its dataset, whatever its loss makes of the labels.
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
            continue  # or the share of each class, which such tasks take too
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
