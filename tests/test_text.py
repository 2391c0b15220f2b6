"""Lines and numbers as text for people."""

import pytest

from trainer.text import printable, printable_lines


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
