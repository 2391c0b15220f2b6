"""Marks of parametrized tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_only(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Mark all cases but the first as long: they repeat it with other seeds or layouts.

    Args:
        cases: values of one parameter, or what `pytest.param` returns.
        count: how many of them are the first.
    """
    params = []
    for number, case in enumerate(cases):
        param = case if isinstance(case, type(pytest.param())) else pytest.param(case)
        marks = [*param.marks, *([pytest.mark.long] if number >= count else [])]
        params.append(pytest.param(*param.values, id=param.id, marks=marks))
    return params
