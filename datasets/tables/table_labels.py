"""Labels of a table: one class per row, numbers to be predicted, or several labels of 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.datasets.tables.table_columns import Column, Fit, as_texts, column_from, to_numbers
from trainer.datasets.tables.table_files import Rows

FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1}
"""What a column of a multilabel table may hold, in any case of letters."""


@dataclass(frozen=True)
class LabelFit:
    """How columns become labels.

    Attributes:
        kind: `class`, `number` or `multilabel`.
        names: the columns; of `class` one.
        classes: of `class`: the values of the column, in the order of their numbers.
        targets: of `number`: mean and standard deviation of each column in the training rows.
    """

    kind: str
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    targets: tuple[Column, ...] = ()

    @property
    def output_names(self) -> list[str]:
        """The name of each output of a model: of a class, or of a column."""
        return list(self.classes if self.kind == "class" else self.names)

    @property
    def title(self) -> str:
        """The columns, for messages."""
        return ", ".join(self.names)

    def encode(self, rows: Rows) -> np.ndarray:
        """Return the labels of rows: [N] int64, [N, targets] float32, or [N, labels] int64.

        Raises:
            ValueError: a label is missing, or is none that can be learned; the message names file
                and line.
        """
        if self.kind == "class":
            return self._classes_of(rows)
        columns = [_flags(rows, name) for name in self.names] if self.kind == "multilabel" else [
            _numbers(rows, name) for name in self.names
        ]  # fmt: skip
        return np.stack(columns, axis=1)

    def _classes_of(self, rows: Rows) -> np.ndarray:
        (name,) = self.names
        numbers = {text: number for number, text in enumerate(self.classes)}
        labels = _texts(rows, name)
        for row, text in enumerate(labels):
            if text not in numbers:
                raise ValueError(
                    f"{rows.place(row)}: the label ({name}) is {text!r}, which no row that was "
                    "trained on has; remove the row"
                )
        return np.array([numbers[text] for text in labels], np.int64)

    def describe(self) -> str:
        """Return the columns, in words."""
        if self.kind == "class":
            return f"label {self.title} ({len(self.classes)} classes)"
        if self.kind == "multilabel":
            return f"labels {self.title}"
        scales = (f"{c.name} (mean {c.mean:.6g}, deviation {c.std:.6g})" for c in self.targets)
        return f"target{'s' * (len(self.targets) > 1)} {', '.join(scales)}"

    def plain(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        if self.kind == "class":
            return {"label": self.names[0], "classes": list(self.classes)}
        plain = {"label": list(self.names), "label_kind": self.kind}
        return {**plain, "targets": [column.plain() for column in self.targets]}


def label_fit_from(plain: Mapping[str, Any]) -> LabelFit:
    """Return the fit of which `plain` was made."""
    if isinstance(plain["label"], str):
        return LabelFit("class", (plain["label"],), classes=tuple(plain["classes"]))
    targets = tuple(map(column_from, plain["targets"]))
    return LabelFit(plain["label_kind"], tuple(plain["label"]), targets=targets)


class LabelFitter:
    """Fits labels to training rows, a part at a time."""

    def __init__(self, names: Sequence[str], kind: str) -> None:
        """Take the columns and the kind of label."""
        self.names = tuple(names)
        self._kind = kind
        self._classes: set[str] = set()
        self._targets = [Fit(name, "numeric") for name in names] if kind == "number" else []

    def add(self, rows: Rows) -> None:
        """Take more rows into account.

        Raises:
            ValueError: a label is missing, or is no number where it must be one.
        """
        if self._kind == "class":
            self._classes.update(_texts(rows, self.names[0]))
        for target in self._targets:
            _numbers(rows, target.name)
            target.add(rows)

    def fit(self) -> LabelFit:
        """Return what was fitted."""
        return LabelFit(
            self._kind,
            self.names,
            classes=tuple(_ordered(self._classes)),
            targets=tuple(target.column(0) for target in self._targets),
        )


def _texts(rows: Rows, name: str) -> list[str]:
    """Return the labels of rows as texts."""
    labels = as_texts(rows.columns[name])
    if "" in labels:
        raise ValueError(f"{rows.place(labels.index(''))}: the label ({name}) is missing")
    return labels


def _numbers(rows: Rows, name: str) -> np.ndarray:
    """Return a column of targets, [N] float32."""
    try:
        numbers = to_numbers(name, "numeric", rows)
    except ValueError as error:
        what = str(error).partition(";")[0]
        raise ValueError(f"{what}; repair it, or choose dataset.label_kind=class") from error
    if (missing := np.isnan(numbers)).any():
        raise ValueError(f"{rows.place(int(missing.argmax()))}: the label ({name}) is missing")
    return numbers.astype(np.float32)


def _flags(rows: Rows, name: str) -> np.ndarray:
    """Return a column of 0 and 1, [N] int64."""
    labels = _texts(rows, name)
    for row, text in enumerate(labels):
        if text.lower() not in FLAGS:
            raise ValueError(
                f"{rows.place(row)}: the label ({name}) is {text!r}, it must be 0 or 1, or false "
                "or true; repair it, or choose another dataset.label_kind"
            )
    return np.array([FLAGS[text.lower()] for text in labels], np.int64)


def _ordered(classes: Iterable[str]) -> list[str]:
    """Return class names in the order of their numbers, if all are integers; else by name."""
    try:
        return sorted(classes, key=int)
    except ValueError:
        return sorted(classes)
