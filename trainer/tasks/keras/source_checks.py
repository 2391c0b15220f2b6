"""Refuses, by file and line, what a model's own step cannot do in a graph that is traced once."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from typing import Any

from trainer.errors import ConfigError

_GROWS = ("append", "extend")


def check_source(functions: Iterable[Any]) -> None:
    """Check the source of the steps that a model overrides.

    Raises:
        ConfigError: one changes an attribute, or asks for the value of a tensor: it would do so
            once, when it is traced, and not in every step.
    """
    for function in functions:
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # there is no source to read
        file = inspect.getsourcefile(function)
        for node in ast.walk(tree):
            if problem := _problem(node):
                place = f"{file}:{first + node.lineno - 1}"  # type: ignore[attr-defined]
                raise ConfigError(f"model: {place}: {problem}")


def _problem(node: ast.AST) -> str:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        if _of_self(target):
            return (
                f"{ast.unparse(target)} is assigned within a step, which happens once, when the "
                "step is traced; make it a weight (self.add_weight) and call its assign"
            )
    if isinstance(node, ast.Global | ast.Nonlocal):
        return (
            f"{', '.join(node.names)} is changed within a step, which happens once, when the step "
            "is traced; make it a weight (self.add_weight) and call its assign"
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        if name == "numpy" and not node.args:
            return f"{ast.unparse(node)} asks for a value that is not known when the step is traced"
        if name in _GROWS and _of_self(owner):
            return (
                f"{ast.unparse(node.func)} is called once, when the step is traced, and not in "
                "every step; return the value as a metric"
            )
    return ""


def _of_self(node: ast.expr) -> bool:
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
