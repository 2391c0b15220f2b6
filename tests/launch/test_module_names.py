"""Modules that are named in a command, which no import checks."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import trainer

PACKAGE = Path(trainer.__file__).parent


def named_modules():
    """Yield (file, module) of every module of ours that a list of words names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List):
                words = [word.value for word in node.elts if isinstance(word, ast.Constant)]
                for word in words:
                    if isinstance(word, str) and re.fullmatch(r"trainer(\.\w+)+", word):
                        yield path.relative_to(PACKAGE).as_posix(), word


NAMED = list(named_modules())


def test_every_process_is_started_by_the_name_of_its_module():
    assert {
        "launch/processes/worker_process.py",
        "launch/modes/verify.py",
        "sweep/points/point_process.py",
    } <= {file for file, _ in NAMED}


@pytest.mark.parametrize("module", [module for _, module in NAMED])
def test_module_of_a_process_exists_and_has_a_main(module):
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert 'if __name__ == "__main__":' in Path(spec.origin).read_text()
