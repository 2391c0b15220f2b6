"""Tables: CSV and Parquet files with columns of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from trainer.annotations import Free, Ge, Gt, Lt
from trainer.datasets.splits.paths import find_files
from trainer.datasets.tables.table_dataset import TableDataset, TableFiles
from trainer.datasets.tables.table_files import SUFFIXES, CsvFormat
from trainer.datasets.tables.table_fit import check_kinds

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""Texts of a file that stand for a missing value."""

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

    Args:
        path: the files to train on: one, a folder, or a pattern with *.
        test_path: those to test on, or without labels to predict; None: a part of the others.
        label: the column of labels; of `number` and `multilabel` also several.
        label_kind: class: each value is a class; number: numbers to predict; multilabel: each
            column says by 0 or 1 whether a row has a label.
        columns: kinds, name -> numeric, categorical, date or ignored; all others are found.
        missing: fill: a missing number becomes the mean, a missing category its own; or an error.
        max_categories: how many categories of a column are kept, the most frequent; a column of
            more is ignored, unless `columns` names it.
        test_fraction: about which share of the rows to test on if there is no test_path.
        split_by: rows with the same value in this column stay together; None: each for itself.
        delimiter: between the fields of a line; tab: a tab.
        decimal: what is before the fraction of a number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column does not exist.
    """
    files = TableFiles(
        train=find_files(path, SUFFIXES),
        test=[] if test_path is None else find_files(test_path, SUFFIXES, "test_path"),
        csv_format=CsvFormat(_DELIMITERS.get(delimiter, delimiter), MISSING, decimal == "comma"),
        test_fraction=test_fraction,
        split_by=split_by,
    )
    labels = _labels(files, label, label_kind, split_by, columns)
    strict = missing == "error"
    return TableDataset(
        files, labels, label_kind, kinds=columns, max_categories=max_categories, strict=strict
    )


def _labels(
    files: TableFiles,
    label: str | Sequence[str],
    label_kind: str,
    split_by: str | None,
    kinds: Mapping[str, str],
) -> Sequence[str]:
    """Return the columns of labels, after a check of all columns that options name."""
    labels = [label] if isinstance(label, str) else label
    _check_labels(labels, label_kind)
    columns = [("label", name) for name in labels]
    if split_by is not None:
        columns.append(("split_by", split_by))
    for key, name in columns:
        if name not in files.names:
            raise ValueError(
                f"{key} ({name}): {files.train[0]} has no such column, it has "
                f"{', '.join(files.names)}; add dataset.{key}=<one of these>"
            )
    check_kinds(kinds, [name for name in files.names if name not in labels], labels)
    return labels


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
