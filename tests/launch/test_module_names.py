"""Modules that are named in a command, which no import checks."""

import ast
import importlib.util
from pathlib import Path

import pytest

import trainer

PACKAGE = Path(trainer.__file__).parent


def named_modules():
    """Yield (file, module) of every `-m` in a list of words."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List):
                words = [ast.unparse(word) for word in node.elts]
                if "'-m'" in words:
                    word = node.elts[words.index("'-m'") + 1]
                    yield path.relative_to(PACKAGE).as_posix(), ast.literal_eval(word)


NAMED = dict(named_modules())


def test_every_process_is_started_by_the_name_of_its_module():
    assert {"launch/worker_process.py", "launch/verify.py", "sweep/point_process.py"} <= set(NAMED)


@pytest.mark.parametrize("module", NAMED.values())
def test_module_of_a_process_exists_and_has_a_main(module):
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert 'if __name__ == "__main__":' in Path(spec.origin).read_text()
