"""Predictions that are images, such as masks: PNG files beside the table, which names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import write_atomically, writing
from trainer.summaries import figures


def image_columns(rows: np.ndarray) -> list[str]:
    """Return the names of the predictions that are grey images of 8 bits.

    Args:
        rows: a structured array, [n].
    """
    return [
        name
        for name in rows.dtype.names or ()
        if rows[name].dtype == np.uint8 and rows[name].ndim == 3
    ]


def write_images(table: Path, name: str, rows: np.ndarray, ids: Sequence[Any]) -> np.ndarray:
    """Write a prediction of some examples as `<table>-<name>/<id>.png`.

    Args:
        table: the file of the table, in whose folder they are.
        name: of the prediction.
        rows: a structured array, [n]; of rows of weight 0 nothing is written.
        ids: of the examples, [n].

    Returns:
        The paths relative to the table's folder, [n]; empty where there is no file.

    Raises:
        StorageError: one could not be written.
    """
    paths = np.full(len(rows), "", object)
    for row in np.flatnonzero(rows["weight"] > 0).tolist():
        paths[row] = f"{table.stem}-{name}/{ids[row]}.png"
        path = table.parent / paths[row]
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, figures.png(rows[name][row]))
    return paths
