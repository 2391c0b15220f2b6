"""Reads the signature of a dotted path from source text, without importing it.

Importing a target would import TensorFlow, which takes seconds. No TensorFlow.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config.options.constraints import did_you_mean

# They create their names at import, so that their source does not show them. The worker checks
# these targets once it has imported them.
_OPAQUE = ("tensorflow", "tf_keras", "keras")
_TRANSPARENT_DECORATORS = ("staticmethod", "classmethod", "cache", "lru_cache")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class TargetError(LookupError):
    """The dotted path does not exist; the message is the rest of a sentence."""


@dataclass(frozen=True)
class Option:
    """A parameter: its name, its annotation and its default, both as source; None: it has none."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None = None

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is None


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, or of the constructor of a class.

    Attributes:
        positional: parameters that may be passed by position, in order.
        keywords: keyword-only parameters.
        takes_any: whether it has `**kwargs`.
        takes_more: whether it has `*args`.
        names: what the module assigns at top level, among which annotations have their aliases.
    """

    positional: tuple[Option, ...]
    keywords: tuple[Option, ...]
    takes_any: bool
    names: Mapping[str, ast.expr]
    takes_more: bool = False

    @property
    def parameters(self) -> dict[str, Option]:
        """All parameters by name."""
        return {option.name: option for option in (*self.positional, *self.keywords)}


def read(target: str) -> Signature | None:
    """Return the signature of `target`.

    It is None if only an import could tell it: C code, re-exports, decorators.

    Raises:
        TargetError: it does not exist.
    """
    statement, bound = _locate(target)
    names = {
        key: value.value
        for key, value in bound.items()
        if isinstance(value, ast.Assign | ast.AnnAssign) and value.value is not None
    }
    if isinstance(statement, ast.ClassDef):
        return _of_class(statement, bound, names)
    return _of_function(statement, names) if isinstance(statement, _Function) else None


def of(target: Callable[..., Any]) -> Signature | None:
    """Return the signature of an imported target, without its annotations; None: it is C code.

    `*args` of a class do not count: they are what it hands to the class that it extends.
    """
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return None
    groups: dict[str, list[Option]] = defaultdict(list)
    for item in parameters:
        default = None if item.default is item.empty else ast.Constant(item.default)
        groups[item.kind.name].append(Option(item.name, None, default))
    positional = (*groups["POSITIONAL_ONLY"], *groups["POSITIONAL_OR_KEYWORD"])
    takes_more = bool(groups["VAR_POSITIONAL"]) and not isinstance(target, type)
    takes_any = bool(groups["VAR_KEYWORD"])
    return Signature(positional, tuple(groups["KEYWORD_ONLY"]), takes_any, {}, takes_more)


def literals(target: str, names: Sequence[str], *, inherited: bool = True) -> dict[str, Any] | None:
    """Return those attributes of a class that it, or one that it extends, assigns as literals.

    It is None if only an import could tell them, or what an object has instead.

    Args:
        target: the class.
        names: the attributes.
        inherited: whether those of the classes that it extends count.
    """
    try:
        statement, bound = _locate(target)
    except TargetError:
        return None
    if not isinstance(statement, ast.ClassDef):
        return None
    bases = statement.bases if inherited else []
    return _literals(statement, bases, bound, names)


def _literals(
    node: ast.ClassDef,
    bases: Sequence[ast.expr],
    bound: Mapping[str, ast.stmt],
    names: Sequence[str],
) -> dict[str, Any] | None:
    base_names = [base.id if isinstance(base, ast.Name) else "" for base in reversed(bases)]
    inherited = [_inherited(base, bound, names) for base in base_names]
    values = {name: value for base in inherited for name, value in (base or {}).items()}
    if any(map(functools.partial(_is_computed, names=names), ast.walk(node))):
        return None
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if (name := ast.unparse(targets[0])) in names:
                try:
                    values[name] = ast.literal_eval(statement.value)
                except (ValueError, TypeError):  # more than a literal
                    return None
    return None if None in inherited and not values else values


def _is_computed(node: ast.AST, names: Sequence[str]) -> bool:
    """Return whether a part of a class is a property of such a name, or sets one on an object."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store) and node.attr in names
    return isinstance(node, _Function) and node.name in names


def _inherited(
    base: str, bound: Mapping[str, ast.stmt], names: Sequence[str]
) -> dict[str, Any] | None:
    parent = bound.get(base)
    if base in ("ABC", "Protocol"):
        return {}
    if isinstance(parent, ast.ClassDef):
        return _literals(parent, parent.bases, bound, names)
    if not isinstance(parent, ast.ImportFrom) or parent.level:
        return None
    original = next(item.name for item in parent.names if base in (item.asname, item.name))
    return literals(f"{parent.module}.{original}", names)


def _locate(target: str) -> tuple[ast.stmt | None, Mapping[str, ast.stmt]]:
    """Return the statement that defines `target`, if it can be read, and all of its module.

    Raises:
        TargetError: it does not exist.
    """
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError("must be a dotted path; write package.module.name")
    paths = _top_level(parts[0])
    if parts[0] in _OPAQUE or paths is None:
        return None, {}
    for depth, name in enumerate(parts[1:], start=1):
        inner = _submodule(paths, name)
        if not inner:
            return _in_module(paths, parts, depth)
        paths = inner
    raise TargetError("is a module; add the name of a function or class in it")


def source(module: str) -> Path | None:
    """Return the source file of a module, which is not imported; None: there is none here."""
    first, *rest = module.split(".")
    try:
        paths = _top_level(first) or []
    except TargetError:
        return None
    for name in rest:
        paths = _submodule(paths, name)
    return next((path for path in paths if path.suffix == ".py"), None)


def _top_level(name: str) -> list[Path] | None:
    """Return the directories and the file of a top-level module; None if it has no source."""
    loaded = sys.modules.get(name)
    try:
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        if loaded is not None:
            return None
        hint = (
            "; did you mean 'tensorflow'?"
            if name == "tf"
            else "; install it, or start the command in the directory it lies in"
        )
        raise TargetError(f"no module named '{name}'{hint}")
    folders = getattr(loaded, "__path__", None) or spec.submodule_search_locations or []
    paths = [Path(folder) for folder in folders]
    if spec.origin and Path(spec.origin).is_file():
        paths.append(Path(spec.origin))
    return paths if any(path.suffix == ".py" or path.is_dir() for path in paths) else None


def _submodule(paths: Iterable[Path], name: str) -> list[Path]:
    """Return the directory and file of a sub-module of the package at `paths`; may be empty."""
    # importlib's own search would import the parents, and with them whatever they import.
    for path in paths:
        package = path / name
        if (package / "__init__.py").is_file():
            return [package, package / "__init__.py"]
        if (path / f"{name}.py").is_file():
            return [path / f"{name}.py"]
        if package.is_dir() and any(package.rglob("*.py")):
            return [package]  # a namespace package has no file of its own
    return []


def _in_module(
    paths: Iterable[Path], parts: list[str], depth: int
) -> tuple[ast.stmt | None, Mapping[str, ast.stmt]]:
    """Return the statement of `parts[depth:]` in the module `parts[:depth]` at `paths`."""
    module = ".".join(parts[:depth])
    name = parts[depth]
    rest = parts[depth + 1 :]
    files = [
        file for path in paths for file in ([path] if path.suffix == ".py" else path.iterdir())
    ]
    if any(file.name.startswith(f"{name}.") and file.suffix in (".so", ".pyd") for file in files):
        return None, {}
    source = next((path for path in paths if path.suffix == ".py"), None)
    bound = _bindings(_parse(source, source.stat().st_mtime_ns)) if source else {}
    if name not in bound:
        if "*" in bound or "__getattr__" in bound:
            return None, {}
        names_here = [*bound, *(file.stem for file in files)]
        public = [word for word in names_here if not word.startswith(("_", "."))]
        missing = f"no module '{name}'" if rest else f"no '{name}'"
        raise TargetError(f"{missing} in {module}{did_you_mean(name, public)}")
    return (None if rest else bound[name]), bound


@functools.lru_cache(maxsize=64)
def _parse(source: Path, changed_ns: int) -> list[ast.stmt]:
    """Return the statements of a file; `changed_ns` has a file that changed parsed again."""
    try:
        return ast.parse(source.read_bytes()).body
    except SyntaxError as error:
        raise TargetError(f"cannot be read: {source}:{error.lineno}: {error.msg}") from error


def _bindings(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the statement that binds each top-level name, also within `if` and `try`."""
    bound: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, _Function | ast.ClassDef):
            bound[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            bound |= {
                (alias.asname or alias.name).split(".")[0]: statement for alias in statement.names
            }
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bound |= {
                node.id: statement
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name)
            }
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            inner = [
                child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)
            ]
            handlers = [
                child for handler in getattr(statement, "handlers", []) for child in handler.body
            ]
            bound |= _bindings([*inner, *handlers])
    return bound


def _of_class(
    node: ast.ClassDef, bound: Mapping[str, ast.stmt], names: Mapping[str, ast.expr]
) -> Signature | None:
    for statement in node.body:
        if isinstance(statement, _Function) and statement.name == "__init__":
            signature = _of_function(statement, names)
            return signature and replace(signature, positional=signature.positional[1:])
    if node.decorator_list or node.keywords or len(node.bases) > 1:
        return None
    if not node.bases:
        return Signature((), (), False, names)
    name = node.bases[0].id if isinstance(node.bases[0], ast.Name) else ""
    parent = bound.get(name)
    if isinstance(parent, ast.ImportFrom):
        return _imported(parent, name)
    return (
        _of_class(parent, bound, names)
        if isinstance(parent, ast.ClassDef) and parent is not node
        else None
    )


def _imported(statement: ast.ImportFrom, name: str) -> Signature | None:
    """Return the signature of what `from module import name` binds, if it can be read."""
    original = next(alias.name for alias in statement.names if name in (alias.asname, alias.name))
    if statement.level or statement.module is None:
        return None
    try:
        return read(f"{statement.module}.{original}")
    except TargetError:
        return None


def _of_function(node: _Function, names: Mapping[str, ast.expr]) -> Signature | None:
    decorators = {
        getattr(decorator, "id", None) or getattr(decorator, "attr", None)
        for decorator in node.decorator_list
    }
    if not decorators <= set(_TRANSPARENT_DECORATORS):
        return None
    arguments = [*node.args.posonlyargs, *node.args.args]
    without = [None] * (len(arguments) - len(node.args.defaults))
    positional = tuple(
        Option(item.arg, item.annotation, default)
        for item, default in zip(arguments, [*without, *node.args.defaults], strict=True)
    )
    keywords = tuple(
        Option(item.arg, item.annotation, default)
        for item, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    )
    more = node.args.vararg is not None
    return Signature(positional, keywords, node.args.kwarg is not None, names, more)
