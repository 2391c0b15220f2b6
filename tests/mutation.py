"""Tests of the tests: single changes of the code that decides, each of which they must notice.

    python -m tests.mutation --changes 100 --seed 0

A change is one of these, at a place that is drawn: `<` becomes `<=`, `==` becomes `!=`, `and`
becomes `or`, `+` becomes `-`, a number becomes the next one, a condition its opposite, and a call
whose result nobody takes is left out. The tests of the module run in a copy of the checkout; what
they do not notice is printed. Exit code 1: fewer than 90 % were noticed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("conf", "datasets", "models", "tests", "trainer")
SECS = 240
"""Tests that take longer have noticed a change: an end is missing."""
ENOUGH = 0.9

CHECKPOINTS = ("tests/engine/checkpoints", "tests/engine/test_run_state.py")
LAUNCH = ("tests/launch/test_attempt.py", "tests/launch/test_supervisor.py", "tests/launch")
TESTS = {
    "trainer/launch/attempt.py": LAUNCH,
    "trainer/launch/supervisor.py": LAUNCH,
    "trainer/launch/watchdog.py": LAUNCH,
    "trainer/runs/checkpoint_marker.py": ("tests/runs/test_checkpoint_marker.py", *CHECKPOINTS),
    "trainer/runs/checkpoint_retention.py": ("tests/runs/test_checkpoint_retention.py",),
    "trainer/engine/checkpoints/checkpointer.py": CHECKPOINTS,
    "trainer/store/lease.py": ("tests/store",),
    "trainer/engine/plan.py": ("tests/engine/test_plan.py", "tests/engine/test_run_state.py"),
    "trainer/config/batch_sizes.py": ("tests/config",),
}
"""Module -> the quick tests of what it decides, the quickest first."""

_OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip


class Change(NamedTuple):
    """A change of a module: the code of a place in it, and what is there instead."""

    module: str
    line: int
    before: str
    after: str
    start: int
    end: int

    def __str__(self):
        return f"{self.module}:{self.line}: {self.before} -> {self.after}"


def mutants(node):
    """Yield what a piece of code may become."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in _OTHER:
            changed.ops = [_OTHER[type(operator)]()]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _OTHER:
            changed.op = _OTHER[type(operator)]()
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            changed.value = value + 1
        case ast.Constant(value=bool(value)):
            changed.value = not value
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            changed = operand
        case ast.Expr(value=ast.Call()):
            changed = ast.Pass()
        case _:
            return
    yield changed


def changes(module):
    """Return all changes of a module."""
    source = (ROOT / module).read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    # Not the numbers with names of their own: limits, which may well be others.
    bodies = [x for x in ast.parse(source).body if isinstance(x, ast.ClassDef | ast.FunctionDef)]
    for node in (node for body in bodies for node in ast.walk(body)):
        if isinstance(node, ast.ClassDef):
            node.decorator_list = []  # such as frozen=True, which decides nothing
    for node in (node for body in bodies for node in ast.walk(body)):
        for mutant in mutants(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before, after = ast.unparse(node), ast.unparse(mutant)
            text = after if isinstance(mutant, ast.Pass) else f"({after})"
            found.append(Change(module, node.lineno, before, text, start, end))
    return found


def is_noticed(change):
    """Return whether the tests of a module fail when it has a change."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FOLDERS:
            shutil.copytree(ROOT / name, Path(folder, name), symlinks=True)
        for name in ("train.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        source = (ROOT / change.module).read_bytes()
        changed = source[: change.start] + change.after.encode() + source[change.end :]
        Path(folder, change.module).write_bytes(changed)
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not slow and not long",
            "-p", "no:cacheprovider", *TESTS[change.module],
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": folder},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECS,
            )
        except subprocess.TimeoutExpired:
            print(f"no end within {SECS} s: {change}", flush=True)
            return True
        return done.returncode != 0


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--changes", type=int, default=100, help="how many are tried")
    parser.add_argument("--seed", type=int, default=0, help="draws them")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at a time")
    parser.add_argument("--modules", default=",".join(TESTS), help="which are changed")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    by_module = [changes(module) for module in arguments.modules.split(",")]
    # The same number of each module, as far as it goes: the smallest decide as much.
    drawn = [draw.sample(x, len(x)) for x in by_module]
    longest = max(map(len, drawn))
    order = [x[number] for number in range(longest) for x in drawn if number < len(x)]
    chosen = order[: arguments.changes]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(zip(chosen, pool.map(is_noticed, chosen), strict=True))
    missed = [change for change, noticed in results if not noticed]
    for change in missed:
        print(f"not noticed: {change}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} changes were noticed")
    return int(len(missed) > (1 - ENOUGH) * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
