"""Columns of a table, as they are fitted."""

from pathlib import Path

import numpy as np
import pytest

from trainer.datasets.tables.table_columns import Fit, KindFinder, column_from
from trainer.datasets.tables.table_files import Rows


def rows(*values, dtype=object):
    return Rows({"x": np.array(values, dtype)}, Path("a.csv"), range(2, 2 + len(values)))


def kind(*parts):
    finder = KindFinder("x")
    for part in parts:
        finder.add(part)
    return finder.kind


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "", "-2.5e3"], "numeric"),
        (["2024", "2025"], "numeric"),
        (["2024-01-31", "2024-01-31 12:30:01.5"], "date"),
        (["2024-01-31", "today"], "categorical"),
        (["true", "false"], "categorical"),
        (["", ""], "ignored"),
    ],
)
def test_kind_is_found(values, expected):
    assert kind(rows(*values)) == expected


def test_kind_is_that_of_all_parts():
    assert kind(rows("1"), rows("a"), rows("2")) == "categorical"
    assert kind(rows(""), rows("2024-01-31")) == "date"
    assert kind(rows(1.5, np.nan, dtype=float)) == "numeric"
    assert kind(rows("2024-01-31", "NaT", dtype="datetime64[us]")) == "date"


def test_parts_are_merged_without_loss():
    values = 1e9 + np.random.RandomState(0).standard_normal(3000)
    fit = Fit("x", "numeric")
    for part in np.split(values, [1, 10, 2000]):
        fit.add(rows(*part, dtype=float))
    column = fit.column(100)
    assert column.mean == pytest.approx(values.mean(), rel=1e-15)
    assert column.std == pytest.approx(values.std(), rel=1e-6)
    assert column_from(column.plain()) == column


def test_equal_and_missing_numbers_have_a_scale():
    fit = Fit("x", "numeric")
    fit.add(rows("7", "7", ""))
    assert (fit.column(1).mean, fit.column(1).std) == (7.0, 1.0)
    assert fit.column(1).encode(rows("8", ""), refuse_missing=False).tolist() == [1.0, 0.0]
    assert Fit("x", "numeric").column(1).std == 1.0
