"""Charts: round ticks, colours that can be told apart, and values of any kind."""

import math
import re
from xml.etree import ElementTree

import pytest

from trainer.report.charts import Line, colors, line_chart, thinned, tick_label, ticks


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.13, 0.97, [0.2, 0.4, 0.6, 0.8]),
        (0, 337, [0, 100, 200, 300]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (1e-7, 5e-7, [1e-7, 2e-7, 3e-7, 4e-7, 5e-7]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low, high, found):
    assert ticks(low, high, 6) == pytest.approx(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.001, "0.001"), (1e-6, "1e-06"), (250, "250"), (9000, "9000"), (20000, "20k"), (2.5e6, "2.5M"), (-2e4, "-20k")],
)
def test_tick_labels(value, text):
    assert tick_label(value) == text


@pytest.mark.parametrize("count", [1, 2, 10, 11, 60])
def test_every_run_has_a_colour_of_its_own(count):
    found = colors(count)
    assert len(set(found)) == count
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in found)


def svg(*lines):
    chart = line_chart("loss", lines)
    return ElementTree.fromstring(chart), chart


def line(*points, label="a", **options):
    return Line(label, "#0072b2", points, **options)


def test_a_line_goes_through_its_points_in_the_chart():
    figure, _ = svg(line((10, 2.0), (20, 1.0), (40, 0.5)))
    (drawn,) = figure.iter("polyline")
    places = [tuple(map(float, place.split(","))) for place in drawn.get("points").split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted(y for _, y in places)  # down is larger
    assert all(0 <= x <= 520 and 0 <= y <= 300 for x, y in places)
    assert [title.text for title in figure.iter("title")] == [
        "a",
        *(f"a: {value} at step {step}" for step, value in ((10, 2), (20, 1), (40, 0.5))),
    ]


def test_what_is_no_number_interrupts_the_line():
    figure, chart = svg(line((1, 1.0), (2, 2.0), (3, math.nan), (4, math.inf), (5, 1.0), (6, 3.0)))
    assert len(list(figure.iter("polyline"))) == 2
    assert "nan" not in chart
    assert "inf" not in chart


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(1, -math.inf), (2, math.inf)]])
def test_without_a_number_there_is_no_chart(points):
    assert line_chart("loss", [line(*points)]) == ""


@pytest.mark.parametrize("points", [[(0, 0.0)], [(5, -3.0)], [(1, 0.5), (2, 0.5)], [(0, 1e-300), (1, 1e300)], [(1, 0.0), (9, 1e-12)]])
def test_values_of_any_size_have_a_place(points):
    figure, chart = svg(line(*points))
    assert "nan" not in chart
    assert [item for item in figure.iter("polyline")]


def test_what_is_far_apart_is_on_a_logarithmic_scale():
    figure, chart = svg(line((1, 1e-4), (2, 10.0)))
    assert "loss (logarithmic)" in chart
    labels = [text.text for text in figure.iter("text")]
    assert {"0.0001", "0.01", "1"} <= set(labels)
    assert "logarithmic" not in svg(line((1, 0.0), (2, 1e9)))[1]


def test_many_points_are_thinned_and_no_spike_is_lost():
    points = [(step, 0.0) for step in range(100_000)]
    points[77_777] = (77_777, 5.0)
    kept = thinned(points)
    assert len(kept) < 700
    assert (77_777, 5.0) in kept
    assert kept[-1][0] == 99_999
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)


def test_names_are_escaped():
    _, chart = svg(line((1, 1.0), label='<script>"&'))
    assert "<script>" not in chart
    assert line_chart("<b>", [line((1, 1.0))]).count("&lt;b&gt;") == 2
