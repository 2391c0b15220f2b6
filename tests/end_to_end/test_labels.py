"""Tables with numbers or several labels: what is predicted of rows without labels is served too."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.outputs import export_run, predicted_rows, served
from tests.support.training import SHORT, short_engine

pytestmark = pytest.mark.slow

ROWS = 120
BATCH = 16
NEW = "area,town\n25,Bern\n,Paris\n140,\n"
KNOWN = ["dataset.test_path=train.csv", "predict.path=known.csv"]
TASKS = {
    "regression": [
        "task=regression", "dataset.label=[price,rent]", "dataset.label_kind=number",
        "+dataset.columns.large=ignored", "+dataset.columns.north=ignored", "train.steps=8",
    ],
    "multilabel": [
        "task=multilabel", "dataset.label=[large,north]", "dataset.label_kind=multilabel",
        "+dataset.columns.price=ignored", "+dataset.columns.rent=ignored",
        "optimizer.learning_rate=0.02", "train.steps=40",
    ],
}  # fmt: skip
COLUMNS = {
    "regression": {"prediction": ["prediction_price", "prediction_rent"]},
    "multilabel": {
        "predicted": ["predicted_large", "predicted_north"],
        "probabilities": ["probability_large", "probability_north"],
    },
}
"""Task -> output of the export -> the same columns of the table."""


def write_rows(folder):
    """Write `train.csv`, with two targets and two labels, and `new.csv`, without."""
    random = np.random.RandomState(0)
    areas = random.randint(20, 150, ROWS)
    towns = random.choice(["Bern", "Oslo", "Rome"], ROWS)
    lines = [
        f"{area},{town},{5000 * area + 9000 * e:.1f},{2 * area + e:.2f},{area > 80:d},{north:d}"
        for area, town, e, north in zip(
            areas, towns, random.normal(size=ROWS), towns == "Oslo", strict=True
        )
    ]
    header = "area,town,price,rent,large,north"
    (folder / "train.csv").write_text("\n".join([header, *lines]))
    (folder / "new.csv").write_text(NEW)


def numbers(rows, names):
    return np.array([[row[name] for name in names] for row in rows], np.float32)


def predictions_of(export_dir):
    """Return what an export predicts for the new rows, in a batch of the run's size."""
    filled = [*range(3), *[0] * (BATCH - 3)]
    outputs = served(export_dir, "serving_columns")(
        area=tf.gather(tf.constant([25, np.nan, 140], tf.float64), filled),
        town=tf.gather(tf.constant(["Bern", "Paris", ""]), filled),
    )
    return {name: value.numpy()[:3] for name, value in outputs.items()}


@pytest.mark.parametrize("task", TASKS)
def test_rows_without_labels_have_the_same_predictions_when_served(tmp_path, monkeypatch, task):
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ["dataset=table", "dataset.path=train.csv", "model=mlp", *TASKS[task]]
    run_dir = tmp_path / "run"
    short_engine(run_dir, *options).train(lambda: False)
    whole = [*SHORT, *options]
    rows = predicted_rows(run_dir, [*whole, "dataset.test_path=new.csv"])
    columns = COLUMNS[task]
    assert list(rows[0]) == ["id", *(name for names in columns.values() for name in names)]
    if task == "regression":
        assert 1e4 < float(rows[0]["prediction_price"]) < 1e6  # in the unit of the table
    else:
        known = predicted_rows(run_dir, [*whole, *KNOWN])
        labels = numbers(known, ["label_large", "label_north"])
        assert (labels == numbers(known, columns["predicted"])).mean() > 0.9
    export_dir = export_run(run_dir, *whole)
    outputs = predictions_of(export_dir)
    assert outputs.keys() == columns.keys()
    for output, names in columns.items():
        np.testing.assert_array_equal(outputs[output], numbers(rows, names))
    card = (export_dir / "MODEL_CARD.md").read_text()
    assert ("in the unit of the targets" in card) == (task == "regression")
