"""Makes a program that shows a defect smaller, as long as it shows the same one."""

from dataclasses import fields, is_dataclass, replace

from tests.differential.comparison import compare
from tests.differential.grammar import allowed
from tests.differential.source import WIDE_KINDS

TRIES = 120
"""The most programs that are tried."""


def shrunk(program, outcome, compare=compare):
    """Return a smaller program with the same defect, and how it compares.

    Features are removed one after the other; what is left has none that could be removed alone.
    """
    layouts = [] if outcome.layout in ("", "one_device") else [outcome.layout]
    seen = {program}
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in simpler(program):
            if candidate in seen:
                continue
            if len(seen) > TRIES:
                return program, outcome
            seen.add(candidate)
            found = compare(candidate, layouts)
            if (found.kind, found.signature) == (outcome.kind, outcome.signature):
                program, outcome, is_smaller = candidate, found, True
                break
    return program, outcome


def simpler(program):
    """Yield programs with one feature less, the largest first."""
    for candidate in _simpler(program):
        if candidate.inputs and candidate.outputs:
            result = allowed(candidate)
            if result != program and _is_whole(result):
                yield result


def _simpler(value):
    """Yield values with one item less, or with the default of one field."""
    if isinstance(value, tuple):
        for number, item in enumerate(value):
            before, after = value[:number], value[number + 1 :]
            yield (*before, *after)
            if is_dataclass(item):
                yield from ((*before, other, *after) for other in (type(item)(), *_simpler(item)))
    elif is_dataclass(value):
        for field in fields(value):
            for other in (field.default, *_simpler(getattr(value, field.name))):
                yield replace(value, **{field.name: other})


def _is_whole(program):
    """Return whether each output can be made of some input."""
    kinds = {item.kind for item in program.inputs}
    return all(
        kinds & set(WIDE_KINDS[output.shape])
        for output in program.outputs
        if output.shape in WIDE_KINDS
    )
