"""What is learned from the training rows of a table: kinds, scales, categories and labels."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from trainer.datasets.tables.table_files import Rows, as_texts, clean, is_missing

logger = logging.getLogger(__name__)

KINDS = ("numeric", "categorical", "date", "ignored")
FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1}
"""What a column of a multilabel table may hold, in any case of letters."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
_UNNAMED = re.compile(r"(Unnamed: \d+)?")
"""Names that pandas gives to a column without one: to an index that it writes, and reads again."""

Reader = Callable[[Sequence[str]], Iterable[Rows]]
"""Reads some columns of the training rows from the start."""


@dataclass(frozen=True)
class Column:
    """A column, as fitted to the training rows.

    Attributes:
        kind: one of KINDS.
        mean: of numbers; those that are missing get it. Dates are days since 1970.
        std: their standard deviation, 1 where they are all the same.
        values: the categories, sorted; "" is a missing value.
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
        if refuse_missing and (missing := is_missing(rows.columns[self.name])).any():
            raise ValueError(
                f"{rows.place(int(missing.argmax()))}, column {self.name!r}: the value is missing; "
                "fill it in, or add dataset.missing=fill"
            )
        if self.is_number:
            numbers = (_to_numbers(self.name, self.kind, rows) - self.mean) / self.std
            return np.where(np.isnan(numbers), 0.0, numbers).astype(np.float32)
        codes = {value: code for code, value in enumerate(self.values, start=1)}
        texts = as_texts(rows.columns[self.name])
        return np.array([codes.get(text, 0) for text in texts], np.float32)


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """How rows become features and labels.

    Attributes:
        labels: the columns of labels; of `class` one.
        classes: of `class`: the values of the column, in the order of their numbers.
        targets: of `number`: the columns of labels with their scales.
    """

    label_kind: str
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    targets: tuple[Column, ...]
    columns: tuple[Column, ...]

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become features: numbers first, in the order of the table."""
        numbers = tuple(column for column in self.columns if column.is_number)
        return (*numbers, *(column for column in self.columns if column.kind == "categorical"))

    @property
    def output_names(self) -> list[str]:
        """The name of each output of a model: of a class, or of a column."""
        return list(self.classes if self.label_kind == "class" else self.labels)

    def encode_labels(self, rows: Rows) -> np.ndarray:
        """Return the labels of rows: [N] int64, [N, targets] float32, or [N, labels] int64.

        Raises:
            ValueError: a label is missing, or cannot be learned; the message names file
                and line.
        """
        if self.label_kind == "class":
            numbers = {text: number for number, text in enumerate(self.classes)}
            rule = "which no row that was trained on has; remove the row"
            return _label_numbers(rows, self.labels[0], numbers, rule)
        if self.label_kind == "number":
            return np.stack([_targets(rows, name) for name in self.labels], axis=1)
        rule = "it must be 0 or 1, or false or true; repair it, or choose another label_kind"
        return np.stack([_label_numbers(rows, name, FLAGS, rule) for name in self.labels], axis=1)

    def to_text(self) -> str:
        """Return it as JSON; numbers read back to the bit."""
        return json.dumps(asdict(self), indent=1)

    def describe(self) -> str:
        """Return the columns by kind, in one line."""
        parts = []
        for kind in KINDS:
            names = [
                f"{column.name} ({len(column.values)})" if kind == "categorical" else column.name
                for column in self.columns
                if column.kind == kind
            ]
            if names:
                more = f", ... ({len(names)})" if len(names) > 8 else ""
                parts.append(f"{kind} {', '.join(names[:8])}{more}")
        if self.label_kind == "class":
            parts.append(f"label {self.labels[0]} ({len(self.classes)} classes)")
        elif self.label_kind == "multilabel":
            parts.append(f"labels {', '.join(self.labels)}")
        else:
            scales = (f"{c.name} (mean {c.mean:.6g}, deviation {c.std:.6g})" for c in self.targets)
            parts.append(f"target{'s' * (len(self.targets) > 1)} {', '.join(scales)}")
        return f"Columns: {'; '.join(parts)}"


def fit_from(text: str) -> TableFit:
    """Return the fit that `to_text` has written."""
    plain = json.loads(text)
    labels = plain.get("labels") or plain["label"]  # of an older run, maybe a name alone
    targets, columns = (
        tuple(Column(**{**item, "values": tuple(item.get("values", ()))}) for item in items)
        for items in (plain.get("targets", ()), plain["columns"])
    )
    return TableFit(
        label_kind=plain.get("label_kind", "class"),
        labels=(labels,) if isinstance(labels, str) else tuple(labels),
        classes=tuple(plain.get("classes", ())),
        targets=targets,
        columns=columns,
    )


def fit_table(
    read: Reader,
    names: Sequence[str],
    kinds: Mapping[str, str],
    max_categories: int,
    labels: Sequence[str],
    label_kind: str,
) -> TableFit:
    """Fit to the training rows."""
    found = _find_kinds(read, [name for name in names if name not in kinds])
    kinds = {name: found.get(name) or kinds[name] for name in names}
    fits = {name: ColumnFit(name, kind) for name, kind in kinds.items() if kind != "ignored"}
    targets = [ColumnFit(name, "numeric") for name in labels if label_kind == "number"]
    classes: set[str] = set()
    for rows in read([*fits, *labels]):
        for fit in fits.values():
            fit.add(rows)
        for target in targets:
            _targets(rows, target.name)  # checks them
            target.add(rows)
        if label_kind == "class":
            classes.update(_label_texts(rows, labels[0]))
    _warn_of_decimal_commas([fits[name] for name in found if name in fits])
    for name in found:  # of more categories than may be kept: free text, or names
        if name in fits and len(fits[name].counts) > max_categories:
            del fits[name]
    if not fits:
        raise ValueError(f"no column is left to learn from; of {', '.join(names)} all are ignored")
    return TableFit(
        label_kind=label_kind,
        labels=tuple(labels),
        classes=tuple(_ordered(classes)),
        targets=tuple(target.column(max_categories) for target in targets),
        columns=tuple(
            fits[name].column(max_categories) if name in fits else Column(name, "ignored")
            for name in names
        ),
    )


def _find_kinds(read: Reader, names: Sequence[str]) -> dict[str, str]:
    """Return the kind of each column; one without any value or without a name is ignored."""
    named = [name for name in names if not _UNNAMED.fullmatch(name)]
    for name in set(names).difference(named):
        logger.warning(
            "the column %r has no name, as an index that pandas writes; it is ignored: give it a "
            "name to learn from it",
            name,
        )
    possible: dict[str, list[str]] = {name: ["numeric", "date", "categorical"] for name in names}
    empty = set(names)
    for rows in read(named) if named else ():
        for name, values in rows.columns.items():
            if not is_missing(values).all():
                empty.discard(name)
            possible[name] = [kind for kind in possible[name] if _parses(values, kind)]
    return {name: "ignored" if name in empty else possible[name][0] for name in names}


class ColumnFit:
    """Fits a column of a known kind to training rows, a block at a time."""

    def __init__(self, name: str, kind: str) -> None:
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
        numbers = _to_numbers(self.name, self.kind, rows)
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return
        # Sums of blocks are merged around their means (Chan et al. 1979): no digits are lost.
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
            ranked = sorted(self.counts, key=lambda value: (-self.counts[value], value))
            return Column(self.name, self.kind, values=tuple(sorted(ranked[:max_categories])))
        std = float(np.sqrt(self._squares / self._count)) if self._count else 0.0
        return Column(self.name, self.kind, mean=self._mean, std=std or 1.0)


def _warn_of_decimal_commas(fits: Iterable[ColumnFit]) -> None:
    """Warn of columns that would be numbers if their commas were points."""
    for fit in fits:
        texts = [text for text in fit.counts if text]
        numbers = np.array([clean(text, decimal_comma=True) for text in texts], object)
        if texts and _parses(numbers, "numeric"):
            logger.warning(
                "the column %r holds numbers with a comma, such as %s, which count as categories; "
                "add dataset.decimal=comma",
                fit.name,
                texts[0],
            )


def _to_numbers(name: str, kind: str, rows: Rows) -> np.ndarray:
    """Return a column as numbers, [N] float64, NaN where missing; raise a ValueError at another."""
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
    """Return numbers, or the days since 1970 of dates; categories as they are."""
    if kind == "categorical":
        return values
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


def _label_texts(rows: Rows, name: str) -> list[str]:
    labels = as_texts(rows.columns[name])
    if "" in labels:
        raise ValueError(f"{rows.place(labels.index(''))}: the label ({name}) is missing")
    return labels


def _label_numbers(rows: Rows, name: str, numbers: Mapping[str, int], rule: str) -> np.ndarray:
    """Return the number of each label, [N] int64; of flags letters may be of any case."""
    labels = _label_texts(rows, name)
    keys = [label.lower() for label in labels] if numbers is FLAGS else labels
    for row, key in enumerate(keys):
        if key not in numbers:
            raise ValueError(f"{rows.place(row)}: the label ({name}) is {labels[row]!r}, {rule}")
    return np.array([numbers[key] for key in keys], np.int64)


def _targets(rows: Rows, name: str) -> np.ndarray:
    """Return a column of numbers to predict, [N] float32."""
    try:
        numbers = _to_numbers(name, "numeric", rows)
    except ValueError as error:
        what = str(error).partition(";")[0]
        raise ValueError(f"{what}; repair it, or choose dataset.label_kind=class") from error
    if (missing := np.isnan(numbers)).any():
        raise ValueError(f"{rows.place(int(missing.argmax()))}: the label ({name}) is missing")
    return numbers.astype(np.float32)


def _ordered(classes: Iterable[str]) -> list[str]:
    """Return class names in the order of their numbers, if all are integers; else by name."""
    try:
        return sorted(classes, key=int)
    except ValueError:
        return sorted(classes)
