"""Breast cancer: 569 real rows of 30 measurements, in `breast_cancer.csv` next to this file.

The data is "Breast Cancer Wisconsin (Diagnostic)" by W. Wolberg, O. Mangasarian, N. Street and W.
Street (1993), UCI Machine Learning Repository, https://doi.org/10.24432/C5DW2B, licensed CC BY 4.0,
in the order in which scikit-learn ships it. The columns are named here, and the classes by words;
the numbers are unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from trainer.annotations import Gt, Lt
from trainer.datasets.table import TableDataset, table


def breast_cancer(*, test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2) -> TableDataset:
    """Measurements of cell nuclei in breast masses, benign or malignant: a small table."""
    file = Path(__file__).with_name("breast_cancer.csv")
    return table(path=str(file), label="diagnosis", test_fraction=test_fraction)
