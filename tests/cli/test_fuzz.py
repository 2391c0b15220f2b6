"""Commands with mistakes, and YAML files with damage: a line each, or training begins."""

import shlex

import pytest

from tests.support.fuzzer import draw, make_template, problem_of

NUM_CASES = 60
"""Of seed 0; `python -m tests.support.fuzzer` runs more."""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    make_template(folder)
    return folder


@pytest.mark.slow
def test_every_command_ends_with_a_line_or_trains(template, tmp_path):
    problems = {}
    for number in range(NUM_CASES):
        case = draw(number, seed=0)
        if problem := problem_of(case, template, tmp_path / "scratch"):
            problems[f"{number}: {shlex.join(case.words)}"] = problem
    assert problems == {}
