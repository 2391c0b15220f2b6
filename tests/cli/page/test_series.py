"""Curves for the page: read from a position, of files that grow, are cut, or are damaged."""

import json
import math

import pytest

from trainer.cli.page.series import read_series, thin


def line(step, split="train", **values):
    return json.dumps({"step": step, "split": split, "epoch": 1, **values}) + "\n"


def add(path, *lines, name="metrics.jsonl"):
    with open(path / name, "a") as file:
        file.write("".join(lines))


def points(series, name):
    columns = series["points"].get(name, {"step": [], "value": []})
    return list(zip(columns["step"], columns["value"], strict=True))


def test_curves_of_both_files_ascend_and_the_last_line_of_a_step_counts(tmp_path):
    assert read_series(tmp_path)["points"] == {}
    add(tmp_path, line(2, loss=0.5), line(1, loss=2), line(2, loss=math.nan), line(3, loss=None))
    add(tmp_path, line(1, "test", loss=1.23456789), name="evaluations.jsonl")
    series = read_series(tmp_path)
    assert points(series, "train/loss") == [(1, 2), (2, None)]
    assert points(series, "test/loss") == [(1, 1.23457)]
    assert set(series["points"]) == {"train/loss", "test/loss"}
    assert (series["reset"], series["problems"]) == (False, [])


def test_reading_goes_on_where_it_has_ended(tmp_path):
    first = read_series(tmp_path)
    add(tmp_path, line(1, loss=1), line(2, loss=2)[:20])
    second = read_series(tmp_path, first["offset"])
    assert points(second, "train/loss") == [(1, 1)]  # the last line is not complete yet
    add(tmp_path, line(2, loss=2)[20:])
    add(tmp_path, line(1, "test", loss=3), name="evaluations.jsonl")
    third = read_series(tmp_path, second["offset"])
    assert (points(third, "train/loss"), points(third, "test/loss")) == ([(2, 2)], [(1, 3)])
    assert read_series(tmp_path, third["offset"])["points"] == {}
    assert not any(series["reset"] for series in (first, second, third))


@pytest.mark.parametrize("more", [0, 1, 9], ids=["shorter", "as long", "longer"])
def test_file_that_was_cut_is_read_from_its_beginning(tmp_path, more):
    add(tmp_path, line(1, loss=1), line(2, loss=2))
    position = read_series(tmp_path)["offset"]
    (tmp_path / "metrics.jsonl").write_text(line(1, loss=1))
    add(tmp_path, *[line(2 + number, loss=7) for number in range(more)])
    series = read_series(tmp_path, position)
    assert series["reset"]
    assert points(series, "train/loss") == [(1, 1), *((2 + number, 7) for number in range(more))]


@pytest.mark.parametrize("position", ["", "x", "-5", "9-1_0-0", f"{'9' * 15}-0_0-0"])
def test_what_is_no_position_of_the_file_is_its_beginning(tmp_path, position):
    add(tmp_path, line(1, loss=1))
    assert points(read_series(tmp_path, position), "train/loss") == [(1, 1)]


def test_damaged_lines_are_counted_and_hide_no_other(tmp_path):
    add(tmp_path, "[]\n", "\n", line(1, loss=1), "\0" * 100 + "\n", line(2, loss=2))
    series = read_series(tmp_path)
    assert points(series, "train/loss") == [(1, 1), (2, 2)]
    assert series["problems"] == ["metrics.jsonl: 2 lines cannot be read"]
    (tmp_path / "evaluations.jsonl").mkdir()
    series = read_series(tmp_path)
    assert points(series, "train/loss") == [(1, 1), (2, 2)]
    assert series["problems"][0].startswith("evaluations.jsonl cannot be read: ")


def test_thinned_curve_keeps_its_ends_extremes_and_gaps():
    values = [math.sin(step / 50) for step in range(10_000)]
    values[1234], values[4321], values[7777] = 9.0, -9.0, math.nan
    curve = [(step, value) for step, value in enumerate(values)]
    kept = thin(curve, 500)
    assert 400 < len(kept) <= 501
    assert {curve[0], curve[1234], curve[4321], curve[7777], curve[-1]} <= set(kept)
    assert list(kept) == sorted(kept, key=lambda point: point[0])
    assert thin(curve[:500], 500) == curve[:500]


def test_long_file_gives_few_points_and_never_loses_the_newest(tmp_path):
    add(tmp_path, *(line(step, loss=1 / (1 + step), rate=0.5) for step in range(5_000)))
    series = read_series(tmp_path, most=100)
    assert {name: len(each["step"]) <= 101 for name, each in series["points"].items()} == {
        "train/loss": True,
        "train/rate": True,
    }
    assert points(series, "train/loss")[0] == (0, 1)
    assert points(series, "train/loss")[-1][0] == 4_999
