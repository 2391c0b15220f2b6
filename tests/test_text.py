"""Lines and numbers as text for people."""

import pytest

from trainer.text import format_bytes, format_duration, format_metric, printable, printable_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ä b 日本", "ä b 日本"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nerror: b", "a\\nerror: b"),
        ("\x9b2J\u202e\udc80", "\\x9b2J\\u202e\\udc80"),
    ],
)
def test_printable_escapes_what_moves_the_cursor(text, expected):
    assert printable(text) == expected
    assert printable_lines(f"{text}\n\ta").isprintable() is False  # its line break
    assert "\x1b" not in printable_lines(text)


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (format_metric, 0.0, "0.0000"),
        (format_metric, -12.34567, "-12.3457"),
        (format_metric, 0.00012345, "0.000123"),
        (format_metric, -1e-9, "-1e-09"),
        (format_duration, 59.6, "1:00"),
        (format_duration, 3599.9, "1:00:00"),
        (format_duration, 3723, "1:02:03"),
        (format_bytes, 1500, "1.5 kB"),
        (format_bytes, 999_960, "1.0 MB"),
    ],
)
def test_numbers_are_short(function, value, text):
    assert function(value) == text
