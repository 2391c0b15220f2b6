"""How the processes of a run find what a script or notebook defines.

What is in a module is imported by its name. The script itself cannot be: it would train again. So
the definitions that are needed are written to a file of their own.
"""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.files import write_atomically

MAIN = "__main__"
_TF_KERAS = re.compile(r"\b(tf|tensorflow)\.keras\b|from tensorflow import .*\bkeras\b")
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_PLAIN = (ast.Name, ast.Attribute, ast.expr_context)
"""What an assignment may consist of to be made again: `layers = keras.layers`."""


def importable(item: Any, what: str) -> str:
    """Return the dotted path by which a function or class of a module is imported.

    Args:
        item: the function or class.
        what: its name in messages.

    Raises:
        ConfigError: it has none.
    """
    module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", "")
    try:
        found_there = reduce(getattr, name.split("."), sys.modules[str(module)])
    except (KeyError, AttributeError):
        found_there = None
    if found_there is not item:
        kind = "a lambda" if name.endswith("<lambda>") else name or type(item).__name__
        raise ConfigError(
            f"{what} ({kind}) cannot be imported by the processes that train; define it with def "
            "or class at the top level of the script or of a module"
        )
    return f"{module}.{name}"


def kept_definitions(names: Iterable[str], folder: Path) -> Path:
    """Write what the script or notebook defines under some names, and what that uses, to a file.

    Args:
        names: of functions and classes.
        folder: where; the file is named by its content.

    Raises:
        ConfigError: a definition uses a value that is not known by its source.
    """
    text = _definitions(names, _sources(sys.modules[MAIN]))
    path = folder / f"code-{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return path


def check_keras(item: Any) -> None:
    """Refuse code of `tf.keras` where that is Keras 3: the processes that train have tf_keras.

    Args:
        item: a class or function from which a model is made.

    Raises:
        ConfigError: it is such code.
    """
    tensorflow = sys.modules.get("tensorflow")
    match = _TF_KERAS.search("\n".join(_sources(sys.modules[item.__module__])))
    if tensorflow and match and tensorflow.keras.Model.__module__.startswith("keras."):
        raise ConfigError(
            f"{item.__qualname__} is of {match[0]}, which is Keras 3 here, and tf_keras in the "
            "processes that train; write import keras, or set TF_USE_LEGACY_KERAS=1 before "
            "TensorFlow is imported"
        )


def import_folders() -> list[str]:
    """Return the folders from which this process imports the user's modules."""
    roots = {*map(str, (sys.prefix, sys.base_prefix, sys.exec_prefix))}
    return [
        str(Path(place).absolute())
        for place in sys.path
        if Path(place).is_dir() and not any(Path(place).is_relative_to(root) for root in roots)
    ]


def _sources(module: types.ModuleType) -> list[str]:
    """Return the source of a module, or of the cells that the notebook has executed."""
    cells = getattr(module, "In", None)
    if module.__name__ == MAIN and cells is not None:
        return list(cells)
    if getattr(module, "__file__", None) is None:
        raise ConfigError(
            "what an interactive Python defines has no source; write it to a module, and import it"
        )
    return [Path(str(module.__file__)).read_text(encoding="utf-8")]


def _definitions(names: Iterable[str], sources: Iterable[str]) -> str:
    """Return the source of some definitions and of all that they use, in their order."""
    bound: dict[str, tuple[int, ast.stmt]] = {}
    future = []
    for text in sources:
        for statement in _statements(text):
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                future.append(ast.unparse(statement))
            bound |= {name: (len(bound), statement) for name in _names_of(statement)}
    values = vars(sys.modules[MAIN])
    kept: dict[str, tuple[int, str]] = {}
    pending = [(name, "") for name in names]
    while pending:
        name, user = pending.pop()
        if name in kept or (name not in bound and (name not in values or hasattr(builtins, name))):
            continue
        place, statement = bound.get(name, (-1, ast.Pass()))
        if isinstance(statement, _DEFINITIONS):
            source = ast.unparse(statement)
        elif (literal := _literal(values.get(name))) is not None:
            source = f"{name} = {literal}"
        elif isinstance(statement, ast.Assign) and all(
            isinstance(node, _PLAIN) for node in ast.walk(statement.value)
        ):
            source = ast.unparse(statement)
        else:
            raise ConfigError(
                f"{user or name} uses {name} ({type(values.get(name)).__name__}), which the script "
                f"computes; make it inside {user or 'a function'}, or move both to a module"
            )
        kept[name] = (place, source)
        pending += [(other, name) for other in _globals(compile(source, name, "exec"))]
    lines = [source for _, source in sorted(kept.values())]
    return "\n\n\n".join(dict.fromkeys([*future, *lines])) + "\n"


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except SyntaxError:  # a cell that failed
        return []


def _names_of(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top level binds."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((item.asname or item.name).partition(".")[0] for item in statement.names)
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _literal(value: Any) -> str | None:
    """Return the source of a value of numbers and texts; None: it is something else."""
    try:
        return repr(value) if value is not None and ast.literal_eval(repr(value)) == value else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _globals(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code reads from its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def function_node(
    function: Callable[..., Any], what: str, folder: Path, target: str
) -> dict[str, Any]:
    """Return the `_target_` that calls a function, and what that needs to find it.

    Args:
        function: the function.
        what: its name in messages.
        folder: where the definitions of a script are written.
        target: what calls a function of those.

    Raises:
        ConfigError: it cannot be found by the processes that train.
    """
    place = importable(function, what)
    if not place.startswith(f"{MAIN}."):
        return {"_target_": place}
    code = kept_definitions([function.__qualname__.partition(".")[0]], folder)
    return {
        "_target_": target,
        "code": str(code),
        "function": function.__qualname__,
    }
