"""Tables: CSV and Parquet files with a column of labels."""

from __future__ import annotations

from typing import Annotated, Literal

from trainer.datasets.paths import find_files
from trainer.datasets.table_dataset import TableDataset, TableFiles
from trainer.datasets.table_files import SUFFIXES
from trainer.datasets.table_fit import check_kinds

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""Texts of a file that stand for a missing value."""


def table(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    path: str | None = None,
    test_path: str | None = None,
    label: str = "label",
    columns: dict[str, str] = {},  # noqa: B006 - never changed
    missing: Literal["fill", "error"] = "fill",
    max_categories: Annotated[int, ">= 1"] = 100,
    test_fraction: Annotated[float, "> 0, < 1"] = 0.1,
    split_by: str | None = None,
    delimiter: str = ",",
) -> TableDataset:
    """Rows of CSV or Parquet files, whose columns become one vector of features.

    Numbers are normalised by mean and standard deviation of the training rows; categories are
    one-hot, and those that no training row has share one feature. What is fitted to the training
    rows is kept in the run directory, and used whenever the run is continued or predicts.

    Args:
        path: the files to train on: one, a folder, or a pattern with *.
        test_path: the files to test on; None: a part of the others. To predict, they may lack the
            column of labels.
        label: the column of labels, one class per value.
        columns: kinds, name -> numeric, categorical, date or ignored; all others are found.
        missing: fill: a missing number becomes the mean, and a missing category is one of its own;
            error: it is an error.
        max_categories: how many categories of a column are kept, the most frequent; a column of
            more is ignored, unless `columns` names it.
        test_fraction: about which share of the rows to test on if there is no test_path.
        split_by: rows with the same value in this column stay together; None: each for itself.
        delimiter: between the fields of a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column does not exist.
    """
    files = TableFiles(
        train=find_files(path, SUFFIXES),
        test=[] if test_path is None else find_files(test_path, SUFFIXES, "test_path"),
        delimiter=delimiter,
        missing=MISSING,
        test_fraction=test_fraction,
        split_by=split_by,
    )
    _check_names(files, label=label, split_by=split_by)
    check_kinds(columns, [name for name in files.names if name != label], label)
    refuse = missing == "error"
    return TableDataset(
        files, label, kinds=columns, max_categories=max_categories, refuse_missing=refuse
    )


def _check_names(files: TableFiles, **options: str | None) -> None:
    """Raise unless the columns that options name exist.

    Raises:
        ValueError: one does not.
    """
    names = files.names
    for key, name in options.items():
        if name is not None and name not in names:
            raise ValueError(
                f"{key} ({name}): {files.train[0]} has no such column, it has {', '.join(names)}; "
                f"add dataset.{key}=<one of these>"
            )
