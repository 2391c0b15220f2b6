"""Columns of a table: their kinds, what is fitted to the training rows, and their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.datasets.tables.table_files import Rows

KINDS = ("numeric", "categorical", "date", "ignored")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")


@dataclass(frozen=True)
class Column:
    """A column of features, as fitted to the training rows.

    Attributes:
        name: its name.
        kind: one of KINDS.
        mean: of numbers; those that are missing get it. Dates are days since 1970.
        std: their standard deviation, 1 where they are all the same.
        values: the categories, sorted; "" stands for a missing value.
    """

    name: str
    kind: str
    mean: float = 0.0
    std: float = 1.0
    values: tuple[str, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether it becomes one number."""
        return self.kind in ("numeric", "date")

    @property
    def width(self) -> int:
        """How many features it becomes: a category is one-hot, with one for those not seen."""
        if self.kind == "ignored":
            return 0
        return 1 if self.is_number else len(self.values) + 1

    def encode(self, rows: Rows, *, refuse_missing: bool) -> np.ndarray:
        """Return the normalized numbers of rows, or the number of their category, [N] float32.

        The first category is 1; 0 are all that the training rows do not have.

        Raises:
            ValueError: a value is no number or date, or is missing and that is refused.
        """
        if refuse_missing:
            _refuse_missing(self.name, rows)
        if self.is_number:
            numbers = (to_numbers(self.name, self.kind, rows) - self.mean) / self.std
            return np.where(np.isnan(numbers), 0.0, numbers).astype(np.float32)
        codes = {value: code for code, value in enumerate(self.values, start=1)}
        texts = as_texts(rows.columns[self.name])
        return np.array([codes.get(text, 0) for text in texts], np.float32)

    def plain(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        plain: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.is_number:
            return {**plain, "mean": self.mean, "std": self.std}
        return plain if self.kind == "ignored" else {**plain, "values": list(self.values)}


def column_from(plain: Mapping[str, Any]) -> Column:
    """Return the column of which `plain` was made."""
    return Column(**{**plain, "values": tuple(plain.get("values", ()))})


class KindFinder:
    """Finds the kind of a column from its training rows."""

    def __init__(self, name: str) -> None:
        """Take the column's name."""
        self._name = name
        self._kinds = ["numeric", "date"]
        self._is_empty = True

    def add(self, rows: Rows) -> None:
        """Look at more rows."""
        values = rows.columns[self._name]
        self._is_empty &= bool(is_missing(values).all())
        self._kinds = [kind for kind in self._kinds if _parses(values, kind)]

    @property
    def kind(self) -> str:
        """The kind; a column without any value is ignored."""
        if self._is_empty:
            return "ignored"
        return next(iter(self._kinds), "categorical")


class Fit:
    """Fits a column of a known kind to training rows, a part at a time."""

    def __init__(self, name: str, kind: str) -> None:
        """Take the column's name and kind."""
        self.name = name
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, rows: Rows) -> None:
        """Take more rows into account."""
        if self.kind == "categorical":
            self.counts.update(as_texts(rows.columns[self.name]))
            return
        numbers = to_numbers(self.name, self.kind, rows)
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return
        # Sums of parts are merged around their means (Chan et al. 1979): no digits are lost.
        total = self._count + len(numbers)
        mean = float(numbers.mean())
        shift = mean - self._mean
        self._squares += float(((numbers - mean) ** 2).sum())
        self._squares += shift * shift * self._count * len(numbers) / total
        self._mean += shift * len(numbers) / total
        self._count = total

    def column(self, max_categories: int) -> Column:
        """Return the fitted column; of more categories the most frequent are kept."""
        if self.kind == "categorical":
            ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
            return Column(
                self.name, self.kind, values=tuple(sorted(v for v, _ in ranked[:max_categories]))
            )
        std = float(np.sqrt(self._squares / self._count)) if self._count else 0.0
        return Column(self.name, self.kind, mean=self._mean, std=std or 1.0)


def as_texts(values: np.ndarray) -> list[str]:
    """Return values as texts: whole numbers without a point, "" for a missing one."""
    if values.dtype == object:
        return list(values)
    missing = is_missing(values)
    texts = values.astype(str) if values.dtype.kind == "M" else (f"{v:.17g}" for v in values)
    return ["" if lacks else text for text, lacks in zip(texts, missing, strict=True)]


def to_numbers(name: str, kind: str, rows: Rows) -> np.ndarray:
    """Return a column as numbers, [N] float64, NaN where a value is missing.

    Raises:
        ValueError: a value is none; the message names file and line.
    """
    values = rows.columns[name]
    try:
        numbers = _parse(values, kind)
    except ValueError as error:
        row = next(row for row in range(len(values)) if not _parses(values[row : row + 1], kind))
        what = "a number" if kind == "numeric" else "a date, such as 2024-01-31"
        raise ValueError(
            f"{rows.place(row)}, column {name!r}: {as_texts(values)[row]!r} is not {what}; repair "
            "it, or make the column categorical or ignored in dataset.columns"
        ) from error
    if np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
        raise ValueError(f"{rows.place(row)}, column {name!r}: the number is infinite")
    return numbers


def _parse(values: np.ndarray, kind: str) -> np.ndarray:
    """Return numbers, or the days since 1970 of dates."""
    if kind == "numeric":
        if values.dtype.kind == "M":
            raise ValueError("dates")
        if values.dtype != object:
            return values
        return np.array([text or "nan" for text in values], np.float64)
    if values.dtype == object:
        if not all(_DATE.fullmatch(text) for text in values if text):
            raise ValueError("no dates")
        values = np.array([text or "NaT" for text in values], "datetime64[us]")
    elif values.dtype.kind != "M":
        raise ValueError("numbers")
    return np.where(np.isnat(values), np.nan, values.astype(np.int64) / 86_400e6)


def _parses(values: np.ndarray, kind: str) -> bool:
    try:
        _parse(values, kind)
    except ValueError:
        return False
    return True


def is_missing(values: np.ndarray) -> np.ndarray:
    """Return whether each value is missing, [N] bool."""
    if values.dtype == object:
        return values == ""
    return np.isnat(values) if values.dtype.kind == "M" else np.isnan(values)


def _refuse_missing(name: str, rows: Rows) -> None:
    missing = is_missing(rows.columns[name])
    if missing.any():
        raise ValueError(
            f"{rows.place(int(missing.argmax()))}, column {name!r}: the value is missing; "
            "fill it in, or add dataset.missing=fill"
        )
