"""Tables and numbers as people read them."""

import math

import pytest

from trainer.tables import aligned, duration, number, overall


def test_columns_stand_below_one_another_and_nothing_trails():
    assert aligned([("name", "n", "why"), ("a", "10", ""), ("longer", "2", "x")], "<><") == [
        "name     n  why",
        "a       10",
        "longer   2  x",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0000"),
        (0.9375, "0.9375"),
        (-12.34567, "-12.3457"),
        (0.00012345, "0.000123"),
        (-1e-9, "-1e-09"),
        (2.5e30, "2.5e+30"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (0, "0:00"),
        (0.4, "0:00"),
        (12, "0:12"),
        (59.6, "1:00"),
        (185, "3:05"),
        (3599.9, "1:00:00"),
        (3723, "1:02:03"),
        (360_000, "100:00:00"),
    ],
)
def test_duration(secs, text):
    assert duration(secs) == text


def test_a_line_has_no_room_for_each_class():
    assert overall({"loss": 1.0, "precision": 0.5, "precision/3": 0.1}) == {"loss": 1.0, "precision": 0.5}
