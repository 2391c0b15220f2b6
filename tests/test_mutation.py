"""The changes by which `python -m tests.mutation` tests the tests."""

import ast

import pytest

from tests.mutation import ROOT, TESTS, changes


@pytest.mark.parametrize("module", TESTS)
def test_changes_are_python_and_have_tests(module):
    source = (ROOT / module).read_bytes()
    before = ast.dump(ast.parse(source))
    found = changes(module)
    for change in found[::20]:
        changed = source[: change.start] + change.after.encode() + source[change.end :]
        assert ast.dump(ast.parse(changed)) != before, change
    assert len(found) > 10
    assert all((ROOT / path).exists() for path in TESTS[module])
