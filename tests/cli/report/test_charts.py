"""Charts: round ticks, distinct colors, and values of any kind."""

import math
import re
from xml.etree import ElementTree

import pytest

from trainer.cli.report.charts import Line, colors_of, line_chart, thinned, tick_label, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.13, 0.97, [0.2, 0.4, 0.6, 0.8]),
        (0, 337, [0, 100, 200, 300]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (1e-7, 5e-7, [1e-7, 2e-7, 3e-7, 4e-7, 5e-7]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high, 6) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1e-6, "1e-06"), (9000, "9000"), (20000, "20k"), (2.5e6, "2.5M"), (-2e4, "-20k"),
    ],
)  # fmt: skip
def test_tick_labels(value, text):
    assert tick_label(value) == text


@pytest.mark.parametrize("count", [1, 2, 10, 11, 60])
def test_colors_are_distinct(count):
    colors = colors_of(count)
    assert len(set(colors)) == count
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)


def svg(*lines):
    chart = line_chart("loss", lines)
    return ElementTree.fromstring(chart), chart


def line(*points, label="a", **options):
    return Line(label, "#0072b2", points, **options)


def test_line_goes_through_its_points():
    figure, _ = svg(line((10, 2.0), (20, 1.0), (40, 0.5)))
    (drawn,) = figure.iter("polyline")
    coordinates = [tuple(map(float, pair.split(","))) for pair in drawn.get("points").split()]
    assert [x for x, _ in coordinates] == sorted(x for x, _ in coordinates)
    assert [y for _, y in coordinates] == sorted(y for _, y in coordinates)  # down is larger
    assert all(0 <= x <= 520 and 0 <= y <= 300 for x, y in coordinates)
    assert [title.text for title in figure.iter("title")] == [
        "a",
        *(f"a: {value} at step {step}" for step, value in ((10, 2), (20, 1), (40, 0.5))),
    ]


def test_non_finite_value_interrupts_line():
    figure, chart = svg(line((1, 1.0), (2, 2.0), (3, math.nan), (4, math.inf), (5, 1.0), (6, 3.0)))
    assert len(list(figure.iter("polyline"))) == 2
    assert "nan" not in chart
    assert "inf" not in chart


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(1, -math.inf), (2, math.inf)]])
def test_chart_without_points_is_empty(points):
    assert line_chart("loss", [line(*points)]) == ""


@pytest.mark.parametrize(
    "points",
    [[(0, 0.0)], [(5, -3.0)], [(0, 1e-300), (1, 1e300)], [(1, 0.0), (9, 1e-12)]],
)
def test_chart_accepts_values_of_any_size(points):
    figure, chart = svg(line(*points))
    assert "nan" not in chart
    assert [item for item in figure.iter("polyline")]


def test_large_ratio_uses_logarithmic_scale():
    figure, chart = svg(line((1, 1e-4), (2, 10.0)))
    assert "loss (logarithmic)" in chart
    labels = [text.text for text in figure.iter("text")]
    assert {"0.0001", "0.01", "1"} <= set(labels)
    assert "logarithmic" not in svg(line((1, 0.0), (2, 1e9)))[1]


def test_thinning_keeps_spikes():
    points = [(step, 0.0) for step in range(100_000)]
    points[77_777] = (77_777, 5.0)
    kept = thinned(points)
    assert len(kept) < 700
    assert (77_777, 5.0) in kept
    assert kept[-1][0] == 99_999
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)


def test_chart_escapes_names():
    _, chart = svg(line((1, 1.0), label='<script>"&'))
    assert "<script>" not in chart
    assert line_chart("<b>", [line((1, 1.0))]).count("&lt;b&gt;") == 2
