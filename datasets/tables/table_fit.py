"""What is learned from the training rows of a table: kinds, scales, categories and labels."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainer.datasets.tables.table_columns import (
    KINDS,
    Column,
    Fit,
    KindFinder,
    column_from,
)
from trainer.datasets.tables.table_files import CsvFormat, Rows
from trainer.datasets.tables.table_labels import LabelFit, LabelFitter, label_fit_from

logger = logging.getLogger(__name__)

_UNNAMED = re.compile(r"(Unnamed: \d+)?")
"""Names that pandas gives to a column without one: to an index that it writes, and reads again."""

Reader = Callable[[Sequence[str]], Iterable[Rows]]
"""Reads some columns of the training rows from the start."""


@dataclass(frozen=True)
class TableFit:
    """How rows become features and labels.

    Attributes:
        label: the columns of labels, and how they are read.
        columns: the other columns.
        num_rows: how many training rows there were.
    """

    label: LabelFit
    columns: tuple[Column, ...]
    num_rows: int

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become features: numbers first, in the order of the table."""
        numbers = tuple(column for column in self.columns if column.is_number)
        return (*numbers, *(column for column in self.columns if column.kind == "categorical"))

    def to_text(self) -> str:
        """Return it as JSON; numbers read back to the bit."""
        columns = [column.plain() for column in self.columns]
        content = {**self.label.plain(), "num_rows": self.num_rows, "columns": columns}
        return json.dumps(content, indent=1)

    def describe(self) -> str:
        """Return the columns by kind, in one line."""
        parts = []
        for kind in KINDS:
            columns = [column for column in self.columns if column.kind == kind]
            names = [
                f"{column.name} ({len(column.values)})" if kind == "categorical" else column.name
                for column in columns
            ]
            if names:
                more = f", ... ({len(names)})" if len(names) > 8 else ""
                parts.append(f"{kind} {', '.join(names[:8])}{more}")
        return f"Columns: {'; '.join([*parts, self.label.describe()])}"


def fit_from(text: str) -> TableFit:
    """Return the fit that `to_text` has written."""
    content = json.loads(text)
    return TableFit(
        label_fit_from(content),
        tuple(map(column_from, content["columns"])),
        content["num_rows"],
    )


def fit_table(
    read: Reader,
    names: Sequence[str],
    labels: LabelFitter,
    kinds: Mapping[str, str],
    max_categories: int,
) -> TableFit:
    """Fit to the training rows.

    Args:
        read: reads them.
        names: all columns, but for those of labels.
        labels: fits the columns of labels.
        kinds: the kinds that are known; all others are found.
        max_categories: how many categories of a column are kept.

    Raises:
        ValueError: a row is damaged, or no column is left.
    """
    unnamed = [name for name in names if name not in kinds and _UNNAMED.fullmatch(name)]
    for name in unnamed:
        logger.warning(
            "the column %r has no name, as an index that pandas writes; it is ignored: give it a "
            "name to learn from it",
            name,
        )
    kinds = {**kinds, **dict.fromkeys(unnamed, "ignored")}
    inferred = _find_kinds(read, [name for name in names if name not in kinds])
    kinds = {name: inferred.get(name) or kinds[name] for name in names}
    fits = {name: Fit(name, kind) for name, kind in kinds.items() if kind != "ignored"}
    num_rows = 0
    for rows in read([*fits, *labels.names]):
        for fit in fits.values():
            fit.add(rows)
        labels.add(rows)
        num_rows += len(rows.numbers)
    _warn_of_decimal_commas([fits[name] for name in inferred if name in fits])
    columns = [
        fits[name].column(max_categories)
        if _is_kept(fits.get(name), name in inferred, max_categories)
        else Column(name, "ignored")
        for name in names
    ]  # fmt: skip
    if all(column.kind == "ignored" for column in columns):
        raise ValueError(f"no column is left to learn from; of {', '.join(names)} all are ignored")
    return TableFit(labels.fit(), tuple(columns), num_rows)


def check_kinds(kinds: Mapping[str, str], names: Sequence[str], labels: Collection[str]) -> None:
    """Raise unless all columns exist and have a kind that exists.

    Raises:
        ValueError: with the column or kind that was probably meant.
    """
    for name, kind in kinds.items():
        if kind not in KINDS:
            hint = _nearest(kind, KINDS)
            raise ValueError(f"columns.{name} ({kind}) must be one of {', '.join(KINDS)}{hint}")
        if name in labels:
            raise ValueError(f"columns.{name} is the label (dataset.label); remove it")
        if name not in names:
            hint = _nearest(name, names) or f"; there are {', '.join(names)}"
            raise ValueError(f"columns.{name}: there is no such column{hint}")


def _find_kinds(read: Reader, names: Sequence[str]) -> dict[str, str]:
    finders = {name: KindFinder(name) for name in names}
    if finders:
        for rows in read(names):
            for finder in finders.values():
                finder.add(rows)
    return {name: finder.kind for name, finder in finders.items()}


def _is_kept(fit: Fit | None, is_found: bool, max_categories: int) -> bool:
    """Return whether a column is used: not one that is found to be free text or names."""
    if fit is None:
        return False
    return not (is_found and fit.kind == "categorical" and len(fit.counts) > max_categories)


def _warn_of_decimal_commas(fits: Iterable[Fit]) -> None:
    """Warn of columns that would be numbers if their commas were points."""
    csv_format = CsvFormat(decimal_comma=True)
    columns = {fit.name: [text for text in fit.counts if text] for fit in fits}
    for name, texts in columns.items():
        if texts and all(_is_number(csv_format.value(text)) for text in texts):
            logger.warning(
                "the column %r holds numbers with a comma, such as %s, which count as categories; "
                "add dataset.decimal=comma",
                name,
                texts[0],
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _nearest(word: str, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
