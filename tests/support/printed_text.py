"""Compares what a command prints with what a page shows.

A page shows what a real run has printed. Another run or machine prints other decimal numbers,
percentages, durations, dates and hashes of runs; they match whatever is of their kind. The line
`Time:` also lists the shares of the time in another order. Whole numbers without a unit are exact,
and so are lines of errors, which repeat what was typed.
"""

import re

_KINDS = (
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?",
    r"(?:\d+ s|\d+(?::\d\d)+ (?:min|h))\b",  # 5 s, 1:05 min
    r"-?\d+\.\d+(?:e[-+]?\d+)?",
    r"[\d,]*\d(?= (?:%|(?:s|ms|min|h|[kKMG]i?B)\b))",
    r"(?<=-)[0-9a-f]{8}(?:[0-9a-f]{4})?\b",  # the hash in the name of a run
    r" +(?= )",  # columns are as wide as their numbers
)
_VARIABLE = re.compile("|".join(f"({kind})" for kind in _KINDS))


def matches(expected, printed):
    """Return whether output is as expected.

    Args:
        expected: what the page shows; `...` is any text, as a line any number of lines.
        printed: what the command has printed.
    """
    lines = [
        r"(.*\n)?" if line == "..." else f"{_pattern(line)}\n"
        for line in expected.strip().splitlines()
    ]
    return re.fullmatch("".join(lines), f"{printed.rstrip()}\n", re.DOTALL) is not None


def _pattern(line):
    """Return a regular expression for a line."""
    if line.startswith("Time: "):
        return r"Time: \d+ % .*"
    escape = re.escape if line.startswith("error:") else _escape_all_but_kinds
    return ".*".join(map(escape, line.split("...")))


def _escape_all_but_kinds(text):
    pattern, end = "", 0
    for match in _VARIABLE.finditer(text):
        kind = _KINDS[(match.lastindex or 0) - 1]
        pattern += re.escape(text[end : match.start()]) + (" *" if kind.startswith(" ") else kind)
        end = match.end()
    return pattern + re.escape(text[end:])
