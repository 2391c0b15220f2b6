"""Tables: CSV and Parquet files with columns of labels.

A table is fitted to its training rows, encoded in memory, and expanded on the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Free, Ge, Gt, Lt
from trainer.datasets.splits.arrays import ArraySplit
from trainer.datasets.splits.paths import find_files, find_splits
from trainer.datasets.tables.table_files import MISSING, SUFFIXES, Rows, TableFiles, column_names
from trainer.datasets.tables.table_fit import KINDS, TableFit, fit_from, fit_table
from trainer.text import did_you_mean

_DELIMITERS = {"tab": "\t", "\\t": "\t"}


def table(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    path: Annotated[str | None, Free(names_run=True)] = None,
    test_path: Annotated[str | None, Free(names_run=True)] = None,
    label: str | list[str] = "label",
    label_kind: Literal["class", "number", "multilabel"] = "class",
    columns: dict[str, str] = {},  # noqa: B006 - never changed
    missing: Literal["fill", "error"] = "fill",
    max_categories: Annotated[int, Ge(1)] = 100,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    split_by: str | None = None,
    delimiter: str = ",",
    decimal: Literal["point", "comma"] = "point",
) -> TableDataset:
    """Rows of CSV or Parquet files, whose columns become one vector of features.

    Numbers are normalized by mean and standard deviation of the training rows, as the run keeps
    them; categories are one-hot, and those that no training row has share one feature.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column does not exist.
    """
    labels = [label] if isinstance(label, str) else label
    files = TableFiles(
        splits=find_splits(path, test_path, partial(find_files, suffixes=SUFFIXES)),
        delimiter=_DELIMITERS.get(delimiter, delimiter),
        decimal_comma=decimal == "comma",
        test_fraction=test_fraction,
        split_by=split_by,
    )
    _check_labels(labels, label_kind)
    _check_columns(files, labels, columns)
    return TableDataset(
        table_files=files,
        labels=tuple(labels),
        label_kind=label_kind,
        kinds=columns,
        max_categories=max_categories,
        strict=missing == "error",
    )


def _check_labels(labels: Sequence[str], label_kind: str) -> None:
    """Raise unless there are as many columns of labels as their kind permits, each named once."""
    shown = f"label ([{', '.join(labels)}])"
    if not labels:
        raise ValueError(f"{shown} names no column; add dataset.label=<column>")
    if len(set(labels)) < len(labels):
        raise ValueError(f"{shown} names a column twice; remove it once")
    if label_kind == "class" and len(labels) > 1:
        raise ValueError(
            f"{shown} must be one column where its values are classes; name one, or add "
            "dataset.label_kind=number or dataset.label_kind=multilabel"
        )


def _check_columns(files: TableFiles, labels: Sequence[str], kinds: Mapping[str, str]) -> None:
    """Raise unless all columns that options name exist, and have a kind that exists."""
    keys = [("label", name) for name in labels]
    for key, name in [*keys, ("split_by", files.split_by)]:
        if name is not None and name not in files.names:
            raise ValueError(
                f"{key} ({name}): {files.splits.train.files[0]} has no such column, it has "
                f"{', '.join(files.names)}; add dataset.{key}=<one of these>"
            )
    for name, kind in kinds.items():
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS)
            raise ValueError(f"columns.{name} ({kind}) must be one of {', '.join(KINDS)}{hint}")
        if name in labels:
            raise ValueError(f"columns.{name} is the label (dataset.label); remove it")
        if name not in files.names:
            hint = did_you_mean(name, files.names) or f"; there are {', '.join(files.names)}"
            raise ValueError(f"columns.{name}: there is no such column{hint}")


@dataclass(kw_only=True, eq=False)
class TableDataset:
    """Rows of a table with their labels.

    Features are one vector: the numbers, normalized, then each category one-hot. In memory a
    category is one number.

    Attributes:
        label_kind: `class`: `label` is [B] int64; `number`: [B, targets] float32, in the unit of
            the table; `multilabel`: [B, labels] int64, 0 or 1.
        train: the split that is trained on, after `fit` or `restore`; so are the others.
    """

    table_files: TableFiles
    labels: tuple[str, ...]
    label_kind: str
    kinds: Mapping[str, str]
    max_categories: int
    strict: bool
    num_draws: int = 0
    train: ArraySplit = field(init=False)
    test: ArraySplit = field(init=False)
    validation: ArraySplit | None = field(init=False, default=None)
    _fit: TableFit = field(init=False)

    def fit(self) -> str:
        """Fit to the training rows, read both splits, and return the fit as JSON.

        Raises:
            ValueError: a row is damaged, or the file to test on has no labels; the message names
                file and line.
        """
        for split, (_, files) in self.table_files.splits.present.items():
            names = column_names(files[0], self.table_files.delimiter)
            if lacking := [name for name in self.labels if name not in names]:
                raise ValueError(
                    f"{files[0]}, of the {split} split of a run that trains, has no column "
                    f"{lacking[0]!r} (dataset.label), it has {', '.join(names)}; add the column, "
                    "or name another file"
                )

        def read(columns: Sequence[str]) -> Iterator[Rows]:
            return self.table_files.read("train", columns)

        names = [name for name in self.table_files.names if name not in self.labels]
        self._use(
            fit_table(read, names, self.kinds, self.max_categories, self.labels, self.label_kind)
        )
        return self._fit.to_text()

    def restore(self, fitted: str) -> None:
        """Use what `fit` has returned for other data, and read both splits.

        Raises:
            ValueError: it is of another label or kind, or a row is damaged.
        """
        fit = fit_from(fitted)
        if fit.labels != self.labels:
            raise ValueError(
                f"label ({', '.join(self.labels)}) is another than that of the run, "
                f"{', '.join(fit.labels)}; start another run"
            )
        if fit.label_kind != self.label_kind:
            raise ValueError(
                f"label_kind ({self.label_kind}) is {fit.label_kind} in the run; start another run"
            )
        kept = {column.name: column.kind for column in fit.columns}
        for name, kind in self.kinds.items():
            if kept.get(name) != kind:
                raise ValueError(
                    f"columns.{name} ({kind}) is {kept.get(name)} in the run; start another run"
                )
        self._use(fit)

    def describe(self) -> list[str]:
        """Return what was fitted, for the start of a run."""
        return [self._fit.describe()]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The number of features, in a tuple."""
        return (sum(column.width for column in self._fit.used),)

    @property
    def num_classes(self) -> int:
        """How many classes, targets or labels there are."""
        return len(self._fit.output_names)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their numbers; or of the columns of labels."""
        return self._fit.output_names

    @property
    def target_scale(self) -> list[tuple[float, float]] | None:
        """Mean and standard deviation of each target in the training rows; None: no numbers."""
        return [(column.mean, column.std) for column in self._fit.targets] or None

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        """Make each category one-hot: of `features` [B, columns], [B, *input_shape] float32."""
        stored = batch["features"]
        count = sum(column.is_number for column in self._fit.used)
        parts = [stored[:, :count]]
        for place, column in enumerate(self._fit.used[count:], start=count):
            parts.append(tf.one_hot(tf.cast(stored[:, place], tf.int32), column.width))
        return {**batch, "features": tf.concat(parts, axis=1)}

    @property
    def column_specs(self) -> dict[str, tf.TensorSpec]:
        """The columns of raw rows that `from_columns` takes, by names that a signature can have.

        Numbers are [B] float64, NaN where missing; dates are days since 1970; categories [B]
        strings, "" where missing.
        """
        specs: dict[str, tf.TensorSpec] = {}
        for column in self._fit.used:
            name = re.sub(r"\W", "_", column.name, flags=re.ASCII)
            while name in specs or not name or name[0].isdigit() or name[0] == "_":
                name = f"c{name}"
            dtype = tf.float64 if column.is_number else tf.string
            specs[name] = tf.TensorSpec([None], dtype, name)
        return specs

    def from_columns(self, columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the model's input for raw rows as in `column_specs`, [B, *input_shape] float32."""
        parts = []
        for name, column in zip(self.column_specs, self._fit.used, strict=True):
            values = columns[name]
            if column.is_number:
                numbers = (values - column.mean) / column.std
                numbers = tf.where(tf.math.is_nan(numbers), tf.zeros_like(numbers), numbers)
                parts.append(tf.cast(numbers, tf.float32))
                continue
            texts = tf.strings.strip(values)
            for text in MISSING:
                texts = tf.where(tf.equal(texts, text), "", texts)
            same = tf.equal(texts[:, None], tf.constant(column.values, tf.string)[None, :])
            codes = tf.cast(same, tf.float32) * tf.range(1.0, len(column.values) + 1.0)
            parts.append(tf.reduce_sum(codes, axis=1))
        return self.transform({"features": tf.stack(parts, axis=1)}, None)["features"]

    def _use(self, fit: TableFit) -> None:
        self._fit = fit
        self.train = self._split("train")
        splits = self.table_files.splits
        if splits.validation is not None:
            self.validation = self._split("validation")
        if splits.is_whole or splits.test is not None:
            self.test = self._split("test")
        else:
            rows, labels = (values[:0] for values in self.train.arrays.values())
            self.test = ArraySplit(rows, labels)

    def _split(self, split: str) -> ArraySplit:
        """Read a split; rows to predict may lack the column of labels."""
        fit = self._fit
        files = self.table_files
        is_train = split == "train"
        _, paths = files.splits.present.get(split, files.splits.train)
        labeled = not set(self.labels).isdisjoint(column_names(paths[0], files.delimiter))
        names = [column.name for column in fit.used] + list(self.labels if labeled else ())
        if is_train and files.split_by is not None:
            names.append(files.split_by)
        features: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        hashes: list[np.ndarray] = []
        for rows in files.read(split, list(dict.fromkeys(names))):
            encoded = [column.encode(rows, refuse_missing=self.strict) for column in fit.used]
            features.append(np.stack(encoded, axis=1))
            if labeled:
                labels.append(fit.encode_labels(rows))
            if is_train:
                hashes.append(files.hashes(rows))
        result = ArraySplit(np.concatenate(features), np.concatenate(labels) if labeled else None)
        result.hashes = np.concatenate(hashes) if hashes else None
        return result
