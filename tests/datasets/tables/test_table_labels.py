"""Labels of a table: numbers, several labels, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.dataset_contract import check_dataset
from tests.support.toy_sources import everything
from trainer.datasets.diabetes import diabetes
from trainer.datasets.table import table

ROWS = """x,kg,price,warm,dry
1,10,-1.5,1,false
2,20,0,0,TRUE
3,30,1.5,1,true
"""


def options(folder: Path, rows: str = ROWS, **more: Any) -> dict[str, Any]:
    """Write rows; return the options of a table that is trained and tested on them."""
    (folder / "rows.csv").write_text(rows)
    path = str(folder / "rows.csv")
    return {"path": path, "test_path": path, **more}


NUMBERS: dict[str, Any] = {"label": ["kg", "price"], "label_kind": "number"}
FLAGS: dict[str, Any] = {"label": ["warm", "dry"], "label_kind": "multilabel"}


def test_numbers_stay_in_their_unit_and_their_scale_is_kept(tmp_path: Path) -> None:
    data = table(**options(tmp_path, **NUMBERS))
    fit = data.fit()
    labels = everything(data.train)["label"]
    assert labels.dtype == np.float32
    assert labels.tolist() == [[10, -1.5], [20, 0], [30, 1.5]]
    assert (data.num_classes, data.class_names, data.label_kind) == (2, ["kg", "price"], "number")
    scale = np.array(data.target_scale)
    np.testing.assert_allclose(scale, [[20, np.sqrt(200 / 3)], [0, np.sqrt(1.5)]])
    assert data.describe()[0].endswith(
        "targets kg (mean 20, deviation 8.16497), price (mean 0, deviation 1.22474)"
    )
    check_dataset(data)
    other = table(**options(tmp_path, ROWS.replace("30,", "3000,"), **NUMBERS))
    other.restore(fit)
    assert np.array(other.target_scale).tobytes() == scale.tobytes()
    assert json.loads(fit)["label"] == ["kg", "price"]


def test_flags_are_zero_and_one(tmp_path: Path) -> None:
    data = table(**options(tmp_path, **FLAGS))
    data.fit()
    labels = everything(data.test)["label"]
    assert labels.dtype == np.int64
    assert labels.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert (data.class_names, data.target_scale) == (["warm", "dry"], None)
    assert data.describe()[0].endswith("; labels warm, dry")
    check_dataset(data)


def test_diabetes_is_the_published_table() -> None:
    data = diabetes()
    data.fit()
    labels = np.concatenate([everything(split)["label"] for split in (data.train, data.test)])
    assert labels.shape == (442, 1)
    # As Efron et al. (2004) have it.
    assert labels.mean() == pytest.approx(152.1335, abs=1e-3)
    assert (labels.min(), labels.max()) == (25.0, 346.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"label": ["kg", "price"]}, r"label \(\[kg, price\]\) must be one column .* add dataset"),
        ({"label": []}, r"label \(\[\]\) names no column; add dataset.label=<column>"),
        ({**NUMBERS, "label": ["kg", "kg"]}, r"label \(\[kg, kg\]\) names a column twice"),
        (
            {**NUMBERS, "label": ["kg", "prize"]},
            r"label \(prize\): .* no such column, it has x, kg",
        ),
        ({**NUMBERS, "columns": {"kg": "numeric"}}, r"columns.kg is the label"),
    ],
)
def test_columns_of_labels_must_suit_their_kind(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        table(**options(tmp_path, **more))


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        (NUMBERS, ROWS.replace(",20,", ",heavy,"), r"line 3, column 'kg': 'heavy' is not a number"),
        (NUMBERS, ROWS.replace(",20,", ",,"), r"rows.csv, line 3: the label \(kg\) is missing"),
        (
            FLAGS,
            ROWS.replace("TRUE", "maybe"),
            r"line 3: the label \(dry\) is 'maybe', it must be 0",
        ),
        (FLAGS, ROWS.replace("TRUE", ""), r"line 3: the label \(dry\) is missing"),
    ],
)
def test_wrong_label_is_told_with_its_line(
    tmp_path: Path, kind: dict[str, Any], rows: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        table(**options(tmp_path, rows, **kind)).fit()


def test_run_of_other_labels_is_another_run(tmp_path: Path) -> None:
    data = table(**options(tmp_path, **FLAGS))
    fit = data.fit()
    with pytest.raises(
        ValueError, match=r"label \(kg, price\) is another .* of the run, warm, dry"
    ):
        table(**options(tmp_path, **NUMBERS)).restore(fit)
    with pytest.raises(ValueError, match=r"label_kind \(number\) is multilabel in the run"):
        table(**options(tmp_path, **{**FLAGS, "label_kind": "number"})).restore(fit)


def test_table_to_test_on_must_have_the_labels(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x\n1\n")
    given = {**options(tmp_path, **NUMBERS), "test_path": str(tmp_path / "new.csv")}
    message = (
        r"new.csv\): a run that trains is tested, .* no column 'kg' \(dataset.label\), it has x;"
    )
    with pytest.raises(ValueError, match=message):
        table(**given).fit()
