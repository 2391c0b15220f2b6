"""Diabetes: 442 real rows of 10 measurements, in `diabetes.csv` next to this file.

The data is that of B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least Angle Regression",
Annals of Statistics (2004), as scikit-learn ships it (BSD 3-Clause), unscaled and in its order. The
columns are age in years, sex (1 or 2), body mass index, mean blood pressure, total cholesterol,
low-density and high-density lipoproteins, total cholesterol / high-density lipoproteins, logarithm
of triglycerides, blood sugar, and how far the disease has progressed a year later, 25 to 346.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from trainer.annotations import Gt, Lt
from trainer.datasets.table import TableDataset, table


def diabetes(*, test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2) -> TableDataset:
    """Measurements of patients, and the progression of their disease: a table with a number."""
    file = Path(__file__).with_name("diabetes.csv")
    return table(
        path=str(file),
        label="progression",
        label_kind="number",
        columns={"sex": "categorical"},
        test_fraction=test_fraction,
    )
