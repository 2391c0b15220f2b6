"""Builds a dataset: fitted, as the run has kept it, and with its validation split.

The validation split is a part of the training split, or other files.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.instantiate import instantiate
from trainer.config.options.constraints import format_value
from trainer.config.rules import augmented
from trainer.config.schema import Experiment
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.files import read_json, write_json
from trainer.protocols import (
    Batch,
    Dataset,
    DatasetDefaults,
    Fitted,
    Split,
    SplitDefaults,
    with_defaults,
)
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.runs import provenance
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.directory import fitted_file
from trainer.worker import checks

KEY = "validation"
_REQUIRED = ("input_shape", "num_classes")


def build_dataset(
    experiment: Experiment, run_dir: Path, channel: Channel, group: ProcessGroup, is_chief: bool
) -> Dataset:
    """Build the configured dataset; collective.

    Raises:
        ConfigError: an option or a file is wrong, or the dataset lacks a member.
    """
    if experiment.env is not None:
        return EnvironmentData(partial(instantiate, experiment.env, "env"))
    node = augmented(experiment.dataset, experiment.augment)
    dataset: Dataset = instantiate(node, "dataset", leave_out=(KEY,))
    fitted = ""
    if isinstance(dataset, Fitted):
        try:
            fitted = fit_or_restore(dataset, run_dir, group, is_chief, fits=experiment.trains)
        except (ValueError, FileNotFoundError) as error:
            raise ConfigError(f"dataset: {error}") from error
        for line in dataset.describe():
            channel.line(line)
    checks.check_dataset(dataset)
    if experiment.trains:
        if is_chief:
            checks.warn_of_missing_numbers(dataset)
        _check_examples(dataset, run_dir, group, is_chief)

    def reopen(path: str) -> Dataset:
        other: Dataset = instantiate({**node, "test_path": path}, "dataset", leave_out=(KEY,))
        if isinstance(other, Fitted):
            other.restore(fitted)
        return other

    add_validation(dataset, node.get(KEY), reopen)
    return dataset


def fit_or_restore(
    dataset: Fitted, run_dir: Path, group: ProcessGroup, is_chief: bool, *, fits: bool
) -> str:
    """Fit a dataset, or restore what the run has kept; return that; collective.

    The run keeps the facts of the chief's data. Other data never change it.

    Args:
        fits: whether what the run does not keep is learned, as in training.

    Raises:
        ConfigError: the run has lost what was kept.
        StorageError: it cannot be kept.
    """
    if not run_dir.is_dir():
        return dataset.fit()
    file = fitted_file(run_dir)
    is_kept = file.exists()
    if is_kept:
        fitted: str = read_json(file)["fitted"]
        dataset.restore(fitted)
    elif fits:
        # In every process, although one fit is used: wrong data are then an error in all of them.
        fitted = dataset.fit()
    else:
        raise ConfigError(
            f"{file} is missing: what the dataset learned when the run was trained; "
            "restore it from a copy, or train again"
        )
    chiefs = group.broadcast_text_from_chief(fitted)
    if chiefs != fitted:
        dataset.restore(chiefs)
    if not is_kept and is_chief:
        write_json(file, {"fitted": chiefs})
    return chiefs


def _check_examples(dataset: Dataset, run_dir: Path, group: ProcessGroup, is_chief: bool) -> None:
    """Check that the training examples are those of all processes, and of the checkpoints."""
    own_digest = with_defaults(dataset, DatasetDefaults).digest
    if own_digest is None:
        return
    try:
        digest = own_digest()
    except ValueError as error:
        raise ConfigError(f"dataset: {error}") from error
    is_other = group.any_process(digest != group.broadcast_text_from_chief(digest))
    has_trained = bool(committed_steps(run_dir / "checkpoints"))
    recorded = provenance.read(run_dir).get("examples")
    is_changed = has_trained and recorded not in (None, digest)
    if is_other or group.any_process(is_changed):
        where = "in all processes" if is_other else "with which the run has been trained"
        raise ConfigError(
            f"dataset: the training examples are not the same {where}; its function must return "
            "the same whenever it is called: give its random numbers a seed; for other data begin "
            "a new run, by resume=never"
        )
    if is_chief:
        provenance.update(run_dir, examples=digest)


def add_validation(
    dataset: Dataset, validation: float | str | None, reopen: Callable[[str], Dataset]
) -> None:
    """Give a dataset the split `validation`, also instead of its own one.

    A fraction leaves the training split; a path is of other files.

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
    for whole, part in zip(
        *(with_defaults(split, SplitDefaults).parts for split in (train, rest)), strict=True
    ):
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
    paths = importlib.import_module("trainer.datasets.splits.paths")
    keys = np.arange(split.num_examples)
    if (hashes := with_defaults(split, SplitDefaults).hashes) is not None:
        keys = (np.asarray(hashes) * 2.0**48).astype(np.int64)
    numbers: np.ndarray = paths.hash_numbers(keys)
    return numbers


def _check_same(dataset: Dataset, other: Dataset, path: str) -> None:
    pairs = {name: (getattr(dataset, name), getattr(other, name)) for name in _REQUIRED}
    ours, theirs = (with_defaults(each, DatasetDefaults) for each in (dataset, other))
    pairs["class_names"] = (ours.class_names, theirs.class_names)
    pairs["vocabulary_size"] = (ours.vocabulary_size, theirs.vocabulary_size)
    for name, (value, other_value) in pairs.items():
        if not np.array_equal(np.asarray(value, object), np.asarray(other_value, object)):
            raise ConfigError(
                f"dataset.validation ({path}) has {name} {format_value(other_value)}, the training "
                f"split {format_value(value)}; they must be the same"
            )


class ChosenExamples:
    """Examples of a split that were chosen by their numbers.

    Args:
        rows: the numbers of the examples, [N] int64, ascending.
    """

    def __init__(self, split: Any, rows: np.ndarray) -> None:
        self.num_examples = len(rows)
        self.in_memory = split.in_memory
        self.augments = with_defaults(split, SplitDefaults).augments
        labels = with_defaults(split, SplitDefaults).labels
        self.labels = None if labels is None else np.asarray(labels)[rows]
        parts = with_defaults(split, SplitDefaults).parts
        ends = np.cumsum([part.size for part in parts])
        counts = np.diff(np.searchsorted(rows, ends), prepend=0).tolist()
        self.parts = [replace(part, size=count) for part, count in zip(parts, counts, strict=True)]
        self._split = split
        self._rows = rows
        self._constant: tf.Tensor | None = None

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> Batch:
        if self._constant is None:
            # At first use, and not in the graph: no older than the strategy, and captured once.
            with tf.init_scope(), tf.device("CPU:0"):
                self._constant = tf.constant(self._rows, tf.int64)
        with tf.device("CPU:0"):
            rows = tf.gather(self._constant, indices)
        batch: Batch = self._split.fetch(rows, *([] if draws is None else [draws]))
        return batch
