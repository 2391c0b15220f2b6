"""Marks of parametrized tests."""

import pytest


def first_only(cases, count=1):
    """Mark all cases but the first as long: they repeat it with other seeds or layouts."""
    params = []
    for number, case in enumerate(cases):
        if not hasattr(case, "marks"):  # what `pytest.param` returns has them
            case = pytest.param(*(case if isinstance(case, tuple) else (case,)))
        marks = [*case.marks, *([pytest.mark.long] if number >= count else [])]
        params.append(pytest.param(*case.values, id=case.id, marks=marks))
    return params
