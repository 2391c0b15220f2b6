"""Tables of CSV and Parquet files."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy_sources import everything
from trainer.datasets.table import table
from trainer.datasets.tables import table_files

TRAIN = """id,age,city,since,member,label
a,10,Bern,2024-01-01,yes,no
b,20,Oslo,2024-01-03,no,yes
c,,Bern,2024-01-05,yes,no
d,30, NA ,,no,yes
"""
TEST = """label,member,since,city,age,more
yes,maybe,2024-01-03,Rome,20,1

no,yes,2024-01-01,Bern,?,2
"""


def write(folder, train=TRAIN, test=TEST):
    """Write two files; return the options that name them."""
    (folder / "train.csv").write_text(train)
    if test is None:
        return {"path": str(folder / "train.csv")}
    (folder / "test.csv").write_text(test)
    return {"path": str(folder / "train.csv"), "test_path": str(folder / "test.csv")}


def fitted(options):
    data = table(**options)
    return data, data.fit()


def vectors(data, split):
    features = data.transform(everything(split), None)["features"].numpy()
    return features


OPTIONS = {"columns": {"id": "ignored"}}


def test_columns_become_one_vector(tmp_path):
    data, _ = fitted({**write(tmp_path), **OPTIONS})
    # age, days; city: not seen, missing, Bern, Oslo; member: not seen, no, yes
    assert (data.input_shape, data.class_names) == ((2 + 4 + 3,), ["no", "yes"])
    scale = np.float32(np.sqrt(1.5))
    days = np.float32(2 / np.sqrt(8 / 3))
    assert vectors(data, data.train).tolist() == [
        [-scale, -days, 0, 0, 1, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 1, 0, 1, 0],
        [0, days, 0, 0, 1, 0, 0, 0, 1],
        [scale, 0, 0, 1, 0, 0, 0, 1, 0],
    ]
    assert vectors(data, data.test).tolist() == [
        [0, 0, 1, 0, 0, 0, 1, 0, 0],
        [0, -days, 0, 0, 1, 0, 0, 0, 1],
    ]
    assert everything(data.train)["label"].tolist() == [0, 1, 0, 1]
    assert everything(data.test)["label"].tolist() == [1, 0]
    assert data.train.in_memory
    assert data.describe() == [
        "Columns: numeric age; categorical city (3), member (2); date since; ignored id; "
        "label label (2 classes)"
    ]


def test_parquet_is_read_as_csv_is(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    csv, csv_fit = fitted({**write(tmp_path), **OPTIONS})
    days = np.array(["2024-01-01", "2024-01-03", "2024-01-05", "NaT"], "datetime64[D]")
    columns = {
        "id": arrow.array([[1], [2], [3], [4]]),  # of a type that only an ignored column may have
        "age": arrow.array([10, 20, None, 30], arrow.int64()),
        "city": arrow.array(["Bern", "Oslo", "Bern", None]).dictionary_encode(),
        "since": arrow.array(days),
        "member": arrow.array(["yes", "no", "yes", "no"]),
        "label": arrow.array(["no", "yes", "no", "yes"]),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "train.parquet")
    paths = {"path": str(tmp_path / "train.parquet"), "test_path": str(tmp_path / "test.csv")}
    data, fit = fitted({**paths, **OPTIONS})
    assert fit == csv_fit
    assert vectors(data, data.train).tobytes() == vectors(csv, csv.train).tobytes()
    flags = {"x": arrow.array([True, False, None]), "label": arrow.array([2, 10, 10])}
    parquet.write_table(arrow.table(flags), tmp_path / "flags.parquet")
    path = str(tmp_path / "flags.parquet")
    flagged, _ = fitted({"path": path, "test_path": path})
    assert flagged.class_names == ["2", "10"]  # in the order of numbers
    assert vectors(flagged, flagged.train).tolist() == [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]]


def test_kept_fit_reads_other_data_as_the_first(tmp_path):
    options = {**write(tmp_path), **OPTIONS}
    first, fit = fitted(options)
    expected = vectors(first, first.test)
    (tmp_path / "train.csv").write_text(TRAIN.replace("10", "1000").replace("Oslo", "Kiev"))
    again = table(**options)
    again.restore(fit)
    assert vectors(again, again.test).tobytes() == expected.tobytes()
    assert again.input_shape == first.input_shape
    assert first.train.num_examples == 4
    with pytest.raises(ValueError, match=r"label \(member\) is another.*that of the run, label"):
        table(**{**options, "label": "member"}).restore(fit)
    with pytest.raises(ValueError, match=r"label_kind \(number\) is class in the run"):
        table(**{**options, "label_kind": "number"}).restore(fit)
    with pytest.raises(ValueError, match=r"columns.age \(ignored\) is numeric in the run; start"):
        table(**{**options, "columns": {"age": "ignored"}}).restore(fit)


def test_raw_columns_give_the_bits_of_the_file(tmp_path):
    train = TRAIN.replace("age", "the age")
    data, _ = fitted({**write(tmp_path, train, train), **OPTIONS})
    assert list(data.column_specs) == ["the_age", "since", "city", "member"]
    days = [19723, 19725, 19727, np.nan]
    raw = {
        "the_age": tf.constant([10, 20, np.nan, 30], tf.float64),
        "since": tf.constant(days, tf.float64),
        "city": tf.constant(["Bern", " Oslo ", "Bern", "NA"]),
        "member": tf.constant(["yes", "no", "yes", "no"]),
    }
    assert data.from_columns(raw).numpy().tobytes() == vectors(data, data.test).tobytes()


def test_kinds_are_found_over_all_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "ROWS", 1)
    columns = {
        "numeric": ["1", "", "-2.5e3"],
        "year": ["2024", "2025", "?"],
        "date": ["", "2024-01-31", "2024-01-31 12:30:01.5"],
        "day": ["2024-01-31", "today", "2024-01-31"],
        "flag": ["true", "false", ""],
        "late": ["1", "a", "2"],
        "empty": ["", "NA", ""],
        "label": ["a", "b", "a"],
    }
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    text = "\n".join(lines)
    data, _ = fitted(write(tmp_path, text, text))
    assert data.describe() == [
        "Columns: numeric numeric, year; categorical day (2), flag (3), late (3); date date; "
        "ignored empty; label label (2 classes)"
    ]


def test_blocks_are_merged_without_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "ROWS", 700)
    values = 1e9 + np.random.RandomState(0).standard_normal(3000)
    text = "x,same,label\n" + "".join(f"{value!r},7,a\n" for value in values.tolist())
    _, fit = fitted(write(tmp_path, text, text))
    scale, same = json.loads(fit)["columns"]
    assert scale["mean"] == pytest.approx(values.mean(), rel=1e-15)
    assert scale["std"] == pytest.approx(values.std(), rel=1e-6)
    assert (same["mean"], same["std"]) == (7.0, 1.0)


def test_fit_knows_the_training_rows_alone(tmp_path):
    lines = ["x,group,label", *(f"{n},g{n // 10},{'ab'[n % 2]}" for n in range(400))]
    options = {**write(tmp_path, "\n".join(lines), None), "test_fraction": 0.3}
    data, fit = fitted(options)
    (column,) = [c for c in json.loads(fit)["columns"] if c["name"] == "x"]
    rows = [n for n in range(400) if n not in numbers(data.test, column)]
    assert sorted(numbers(data.train, column)) == rows
    assert column["mean"] == pytest.approx(np.mean(rows), rel=1e-14)
    assert column["std"] == pytest.approx(np.std(rows), rel=1e-14)
    assert data.train.num_examples + data.test.num_examples == 400
    by_group, fit = fitted({**options, "split_by": "group"})
    (column,) = [c for c in json.loads(fit)["columns"] if c["name"] == "x"]
    groups = [{n // 10 for n in numbers(s, column)} for s in (by_group.train, by_group.test)]
    assert groups[0].isdisjoint(groups[1])


def numbers(split, column):
    """Return the values of a column that is the first."""
    stored = everything(split)["features"][:, 0].astype(np.float64)
    return [round(value) for value in (stored * column["std"] + column["mean"]).tolist()]


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        ("d,30", "d,30,1", {}, "line 5: 7 fields, the header has 6"),
        ("30", "inf", {}, "line 5, column 'age': the number is infinite"),
        ("", "", {"missing": "error"}, "line 4, column 'age': the value is missing; .*=fill"),
        ("yes,no\nb", "yes,\nb", {}, r"line 2: the label \(label\) is missing"),
        ("no,yes\n", "no,maybe\n", {}, "test.csv, line 2: the label .* is 'yes'"),
        ("", "", {"label_kind": "multilabel"}, "line 2: .* is 'no', it must be 0"),
    ],
)
def test_wrong_value_is_named_with_file_and_line(tmp_path, old, new, options, message):
    with pytest.raises(ValueError, match=message):
        fitted({**write(tmp_path, TRAIN.replace(old, new) if old else TRAIN), **OPTIONS, **options})


AIR = """Date;CO(GT);T;label;;
10/03/2004;2,6;13;a;;
11/03/2004;-2,0e-1;14;b;;
12/03/2004;;15;a;;
;;;;;
"""
"""As UCI's Air Quality: decimal commas, and delimiters at the end of lines."""


def test_delimiters_at_the_end_of_lines_and_decimal_commas_are_read(tmp_path, caplog):
    options = {**write(tmp_path, AIR, AIR), "delimiter": ";", "columns": {"Date": "ignored"}}
    data, fit = fitted({**options, "decimal": "comma"})
    kinds = {column["name"]: column for column in json.loads(fit)["columns"]}
    assert kinds["CO(GT)"]["mean"] == pytest.approx(1.2)
    assert data.train.num_examples == 3
    assert not caplog.messages
    _, fit = fitted(options)
    assert json.loads(fit)["columns"][1]["kind"] == "categorical"
    (line,) = caplog.messages
    assert "'CO(GT)' holds numbers with a comma, such as 2,6," in line


LABELS = """x,kg,price,warm,dry
1,10,-1.5,1,false
2,20,0,0,TRUE
3,30,1.5,1,true
"""
NUMBERS = {"label": ["kg", "price"], "label_kind": "number"}


def test_numbers_stay_in_their_unit_and_their_scale_is_kept(tmp_path):
    data = table(**write(tmp_path, LABELS, LABELS), **NUMBERS)
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
    other = table(**write(tmp_path, LABELS.replace("30,", "3000,"), LABELS), **NUMBERS)
    other.restore(fit)
    assert np.array(other.target_scale).tobytes() == scale.tobytes()
    assert json.loads(fit)["labels"] == ["kg", "price"]


def test_several_categories_share_the_feature_of_unknown_ones(tmp_path):
    train = "x,label\n" + "".join(f"{value},a\n" for value in "aaabbcccc") + "d,b\n"
    kinds = {"columns": {"x": "categorical"}, "max_categories": 2}
    data, _ = fitted({**write(tmp_path, train, train), **kinds})
    codes = vectors(data, data.test)[[0, 3, 5, 9]].argmax(axis=1)  # of a, b, c, d
    assert codes.tolist() == [1, 0, 2, 0]
    names = "x,y,label\n" + "".join(f"name {n},{n},a\n" for n in range(5))
    data, _ = fitted({**write(tmp_path, names, names), "max_categories": 4})
    assert data.describe() == ["Columns: numeric y; ignored x; label label (1 classes)"]
