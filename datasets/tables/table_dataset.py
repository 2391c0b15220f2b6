"""A table as a dataset: fitted to its training rows, encoded in memory, expanded on the device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit
from trainer.datasets.splits.hashed_split import divide, hash_rows, hash_texts
from trainer.datasets.tables.table_columns import as_texts
from trainer.datasets.tables.table_files import CsvFormat, Rows, column_names, read_rows
from trainer.datasets.tables.table_fit import TableFit, fit_from, fit_table
from trainer.datasets.tables.table_labels import LabelFitter


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files of a table, and how they are read.

    Attributes:
        train: the files to train on.
        test: the files to test on; empty: a part of the others.
        csv_format: how the fields of a line are read.
        test_fraction: about which share of the rows to test on.
        split_by: the column whose hash decides; None: that of the file's name and the row's number.
    """

    train: Sequence[Path]
    test: Sequence[Path]
    csv_format: CsvFormat
    test_fraction: float
    split_by: str | None

    def __post_init__(self) -> None:
        if len(self.csv_format.delimiter) != 1:
            raise ValueError(
                f"delimiter ({self.csv_format.delimiter!r}) must be one character, or tab"
            )

    @cached_property
    def names(self) -> list[str]:
        """The columns of the first file."""
        return column_names(self.train[0], self.csv_format)

    def read(self, split: str, names: Sequence[str]) -> Iterator[Rows]:
        """Read columns of a split, train or test, from the start.

        Raises:
            ValueError: a file is damaged, or lacks a column.
        """
        if self.test:
            files = self.train if split == "train" else self.test
            yield from read_rows(files, names, self.csv_format)
            return
        chosen = self._tested if split == "test" else ~self._tested
        start = 0
        for rows in read_rows(self.train, names, self.csv_format):
            kept = chosen[start : start + len(rows.numbers)]
            start += len(rows.numbers)
            yield Rows(
                {name: values[kept] for name, values in rows.columns.items()},
                rows.file,
                np.asarray(rows.numbers)[kept].tolist(),
            )

    def hashes(self, rows: Rows) -> np.ndarray:
        """Return a number in [0, 1) for each of some rows, [N], that other rows do not change."""
        if self.split_by is None:
            return hash_rows(rows.file.name, np.asarray(rows.numbers))
        return hash_texts(as_texts(rows.columns[self.split_by]))

    @cached_property
    def _tested(self) -> np.ndarray:
        """Whether each row is tested on, [N] bool."""
        name = self.split_by or self.names[0]
        rows = read_rows(self.train, [name], self.csv_format)
        hashes = np.concatenate([np.zeros(0), *map(self.hashes, rows)])
        _, tested = divide(hashes, self.test_fraction, "rows", str(self.train[0]))
        chosen = np.zeros(len(hashes), bool)
        chosen[tested] = True
        return chosen


class TableDataset:
    """Rows of a table with their labels.

    Features are one vector: the numbers, normalized, then each category one-hot. In memory a
    category is one number.

    Attributes:
        num_draws: random numbers per example; none.
        labels: the columns of labels.
        label_kind: `class`: `label` is [B] int64; `number`: [B, targets] float32, in the unit of
            the table; `multilabel`: [B, labels] int64, 0 or 1.
        train: the split that is trained on, after `fit` or `restore`.
        test: the split that is evaluated, likewise.
    """

    num_draws = 0
    train: ArraySplit
    test: ArraySplit

    def __init__(
        self,
        files: TableFiles,
        labels: Sequence[str],
        label_kind: str,
        *,
        kinds: Mapping[str, str],
        max_categories: int,
        strict: bool,
    ) -> None:
        """Take where the table is.

        Args:
            files: the files.
            labels: the columns of labels.
            label_kind: what they hold: `class`, `number` or `multilabel`.
            kinds: kinds of columns that are known.
            max_categories: how many categories of a column are kept.
            strict: whether a missing value is an error.
        """
        self._files = files
        self.labels = tuple(labels)
        self.label_kind = label_kind
        self._kinds = dict(kinds)
        self._max_categories = max_categories
        self._strict = strict
        self._fit: TableFit

    def fit(self) -> str:
        """Fit to the training rows, read both splits, and return the fit as JSON.

        Raises:
            ValueError: a row is damaged, or the file to test on has no labels; the message names
                file and line.
        """
        self._require_labels()
        names = [name for name in self._files.names if name not in self.labels]

        def read(columns: Sequence[str]) -> Iterator[Rows]:
            return self._files.read("train", columns)

        labels = LabelFitter(self.labels, self.label_kind)
        fit = fit_table(read, names, labels, self._kinds, self._max_categories)
        self._use(fit)
        return fit.to_text()

    def restore(self, fitted: str) -> None:
        """Use what `fit` has returned for other data, and read both splits.

        Raises:
            ValueError: it is of another label or kind, or a row is damaged.
        """
        fit = fit_from(fitted)
        if fit.label.names != self.labels:
            raise ValueError(
                f"label ({', '.join(self.labels)}) is another than that of the run, "
                f"{fit.label.title}; start another run"
            )
        if fit.label.kind != self.label_kind:
            raise ValueError(
                f"label_kind ({self.label_kind}) is {fit.label.kind} in the run; start another run"
            )
        kept = {column.name: column.kind for column in fit.columns}
        for name, kind in self._kinds.items():
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
        return len(self._fit.label.output_names)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their numbers; or of the columns of labels."""
        return self._fit.label.output_names

    @property
    def target_scale(self) -> list[tuple[float, float]] | None:
        """Mean and standard deviation of each target in the training rows; None: no numbers."""
        return [(column.mean, column.std) for column in self._fit.label.targets] or None

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        """Make each category one-hot; `draws` is not used.

        Args:
            batch: with `features` [B, columns] float32, as the splits return it.
            draws: None, or [B, 0].

        Returns:
            The batch with `features` [B, *input_shape] float32.
        """
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
        """Return the model's input for raw rows, [B, *input_shape] float32.

        Args:
            columns: as `column_specs` says.
        """
        parts = []
        for name, column in zip(self.column_specs, self._fit.used, strict=True):
            values = columns[name]
            if column.is_number:
                numbers = (values - column.mean) / column.std
                numbers = tf.where(tf.math.is_nan(numbers), tf.zeros_like(numbers), numbers)
                parts.append(tf.cast(numbers, tf.float32))
                continue
            texts = tf.strings.strip(values)
            for text in self._files.csv_format.missing:
                texts = tf.where(tf.equal(texts, text), "", texts)
            same = tf.equal(texts[:, None], tf.constant(column.values, tf.string)[None, :])
            codes = tf.cast(same, tf.float32) * tf.range(1.0, len(column.values) + 1.0)
            parts.append(tf.reduce_sum(codes, axis=1))
        return self.transform({"features": tf.stack(parts, axis=1)}, None)["features"]

    def _use(self, fit: TableFit) -> None:
        self._fit = fit
        self.train = self._split("train")
        self.test = self._split("test")

    def _split(self, split: str) -> ArraySplit:
        """Read a split; rows to predict may lack the column of labels."""
        fit = self._fit
        labeled = split == "train" or not self._files.test or self._has_label()
        names = [column.name for column in fit.used] + list(self.labels if labeled else ())
        features: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        hashes: list[np.ndarray] = []
        if split == "train" and self._files.split_by is not None:
            names.append(self._files.split_by)
        for rows in self._files.read(split, list(dict.fromkeys(names))):
            encoded = [column.encode(rows, refuse_missing=self._strict) for column in fit.used]
            features.append(np.stack(encoded, axis=1))
            if labeled:
                labels.append(fit.label.encode(rows))
            if split == "train":
                hashes.append(self._files.hashes(rows))
        if not features:
            raise ValueError(f"{(self._files.test or self._files.train)[0]} has no rows")
        rows_of = ArraySplit(np.concatenate(features), np.concatenate(labels) if labeled else None)
        rows_of.hashes = np.concatenate(hashes) if hashes else None
        return rows_of

    def _has_label(self) -> bool:
        names = column_names(self._files.test[0], self._files.csv_format)
        return any(name in names for name in self.labels)

    def _require_labels(self) -> None:
        """Raise ValueError unless the files to test on have the columns of labels."""
        for file in self._files.test:
            names = column_names(file, self._files.csv_format)
            if lacking := [name for name in self.labels if name not in names]:
                raise ValueError(
                    f"test_path ({file}): a run that trains is tested, and this file has no column "
                    f"{lacking[0]!r} (dataset.label), it has {', '.join(names)}; add the column, "
                    "or name another file"
                )
