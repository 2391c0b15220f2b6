"""The validation split: a part of the training split, or other files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.config.options.constraints import format_value
from trainer.engine.evaluation.subset import ChosenExamples
from trainer.errors import ConfigError
from trainer.protocols import Dataset, Split, optional

KEY = "validation"
_REQUIRED = ("input_shape", "num_classes")


def add_validation(
    dataset: Dataset, validation: float | str | None, reopen: Callable[[str], Dataset]
) -> None:
    """Give a dataset the split `validation`; a fraction leaves the training split.

    Args:
        dataset: the dataset.
        validation: the fraction of the training split, the path of other files, or None.
        reopen: returns the dataset with a path as its test split.

    Raises:
        ConfigError: the dataset cannot be divided, or the files have other classes.
    """
    if validation is None:
        return
    if isinstance(validation, str):
        try:
            other = reopen(validation)
        except (ValueError, FileNotFoundError) as error:
            raise ConfigError(f"dataset.validation ({validation}): {error}") from error
        _check_same(dataset, other, validation)
        splits: dict[str, Any] = {KEY: other.test}
    else:
        splits = _divided(dataset, validation)
    try:
        for name, split in splits.items():
            object.__setattr__(dataset, name, split)  # a frozen dataclass may be ours to change
    except AttributeError as error:
        raise ConfigError(
            f"dataset.validation ({validation}): `train` of {type(dataset).__name__} cannot be "
            "replaced; make it a plain attribute"
        ) from error


def _divided(dataset: Dataset, fraction: float) -> dict[str, Any]:
    train = dataset.train
    if not isinstance(train, Split):
        raise ConfigError(
            f"dataset.validation ({fraction}) needs examples by number, and the training split is "
            "a stream; divide it in the function that makes it, and add dataset.validation=null"
        )
    chosen = _numbers(train) < fraction
    if chosen.all() or not chosen.any():
        empty = "train" if chosen.all() else KEY
        raise ConfigError(
            f"dataset.validation ({fraction}) leaves none of the {len(chosen)} training examples "
            f"in the {empty} split; change it"
        )
    rest = ChosenExamples(train, np.flatnonzero(~chosen))
    for whole, part in zip(*(optional(split, "parts") for split in (train, rest)), strict=True):
        if part.size == 0:  # of a mixture, which takes examples from each
            raise ConfigError(
                f"dataset.validation ({fraction}) leaves none of the {whole.size} training "
                f"examples of {part.name} in the train split; change it"
            )
    return {KEY: ChosenExamples(train, np.flatnonzero(chosen)), "train": rest}


def _numbers(split: Any) -> np.ndarray:
    """Return a number in [0, 1) for each example of a split, [N]; later examples change none.

    It is a hash of the example's own `hashes`, if the split has them: those may have chosen a test
    split already. Otherwise it is one of its number.
    """
    # By name: packages of the trainer do not import datasets.
    hashed_split = importlib.import_module("trainer.datasets.splits.hashed_split")
    keys = np.arange(split.num_examples)
    if (hashes := optional(split, "hashes")) is not None:
        keys = (np.asarray(hashes) * 2.0**48).astype(np.int64)
    numbers: np.ndarray = hashed_split.hash_numbers(keys)
    return numbers


def _check_same(dataset: Dataset, other: Dataset, path: str) -> None:
    pairs = {name: (getattr(dataset, name), getattr(other, name)) for name in _REQUIRED}
    for name in ("class_names", "vocabulary_size"):
        pairs[name] = (optional(dataset, name), optional(other, name))
    for name, (ours, theirs) in pairs.items():
        if not np.array_equal(np.asarray(ours, object), np.asarray(theirs, object)):
            raise ConfigError(
                f"dataset.validation ({path}) has {name} {format_value(theirs)}, the training "
                f"split {format_value(ours)}; they must be the same"
            )
