"""CSV tables: one for each split, and no row twice."""

import csv

import pytest

from trainer.errors import StorageError
from trainer.summaries.writers.csv import Csv


def rows(run_dir, split):
    with (run_dir / f"metrics-{split}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write(writer, split, *points):
    for step, values in points:
        writer.scalars(split, step, values)
    writer.close()


def test_csv_has_a_table_with_exact_values_for_each_split(tmp_path):
    writer = Csv(tmp_path, 0)
    writer.scalars("train", 3, {"epoch": 0, "loss": 0.1 + 0.2})
    assert rows(tmp_path, "train") == [{"step": "3", "epoch": "0", "loss": "0.30000000000000004"}]
    write(writer, "test", (3, {"accuracy": 1.0}))
    assert (tmp_path / "metrics-test.csv").read_text() == "step,accuracy\n3,1.0\n"
    assert {file.name for file in tmp_path.iterdir()} == {"metrics-train.csv", "metrics-test.csv"}


def test_csv_leaves_missing_values_of_a_column_empty(tmp_path):
    write(
        Csv(tmp_path, 0),
        "test",
        (1, {"loss": 0.5}),
        (2, {"loss": 0.25, "top, 5": 1.0}),
        (3, {"top, 5": 0.5}),
    )
    assert (
        tmp_path / "metrics-test.csv"
    ).read_text() == 'step,loss,"top, 5"\n1,0.5,\n2,0.25,1.0\n3,,0.5\n'


def test_csv_removes_rows_after_the_position(tmp_path):
    write(Csv(tmp_path, 0), "train", *((step, {"loss": step}) for step in range(1, 6)))
    write(Csv(tmp_path, 3), "train", *((step, {"loss": step + 0.5}) for step in range(4, 7)))
    assert [float(row["loss"]) for row in rows(tmp_path, "train")] == [1, 2, 3, 4.5, 5.5, 6.5]


@pytest.mark.parametrize("cut_off", ["3,0.", '3,"0.'])
def test_csv_removes_an_incomplete_row(tmp_path, cut_off):
    write(Csv(tmp_path, 0), "train", (1, {"loss": 0.5}), (2, {"loss": 0.25}))
    with (tmp_path / "metrics-train.csv").open("a") as file:
        file.write(cut_off)
    write(Csv(tmp_path, 3), "train", (4, {"loss": 0.125}))
    assert [row["step"] for row in rows(tmp_path, "train")] == ["1", "2", "4"]


def test_csv_reports_a_failed_write_in_one_line(tmp_path):
    writer = Csv(tmp_path / "gone", 0)
    with pytest.raises(
        StorageError,
        match=r"gone/metrics-train\.csv could not be written: No such file or directory$",
    ):
        writer.scalars("train", 1, {"loss": 0.5})
