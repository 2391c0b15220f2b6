"""Reads the signature of a dotted path from source text, without importing it.

Importing a target would import TensorFlow, which takes seconds. No TensorFlow.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from trainer.config.options.constraints import Names, evaluate
from trainer.text import did_you_mean

# They create their names at import, so that their source does not show them. The worker checks
# these targets once it has imported them.
_OPAQUE = ("tensorflow", "tf_keras", "keras")
_TRANSPARENT_DECORATORS = ("staticmethod", "classmethod", "cache", "lru_cache")

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Assignment = ast.Assign | ast.AnnAssign


class TargetError(LookupError):
    """The dotted path does not exist; the message is what follows it in a line."""


@dataclass(frozen=True, eq=False)
class _Module:
    """The statements that bind the names of a module, and what its annotations mean by them."""

    bound: Mapping[str, ast.stmt] = field(default_factory=dict)

    @functools.cached_property
    def assigned(self) -> dict[str, ast.expr]:
        """What the module assigns at top level."""
        return {
            name: statement.value
            for name, statement in self.bound.items()
            if isinstance(statement, _Assignment) and statement.value is not None
        }

    @functools.cached_property
    def names(self) -> Names:
        """What the names in annotations stand for."""
        return Names(self.assigned)

    def definition(self, expression: ast.expr) -> tuple[ast.stmt | None, _Module]:
        """Return the statement that defines what a name here stands for, if read, and where."""
        name = expression.id if isinstance(expression, ast.Name) else ""
        statement = self.bound.get(name)
        if not isinstance(statement, ast.ImportFrom) or statement.level:
            return statement, self
        original = next(item.name for item in statement.names if name in (item.asname, item.name))
        try:
            return _locate(f"{statement.module}.{original}")
        except TargetError:
            return None, self


def read(target: str) -> Signature | None:
    """Return the signature of `target`, its annotations as type hints (`constraints.evaluate`).

    A default that is more than a literal is `...`. The signature is None if only an import could
    tell it: C code, re-exports, decorators.

    Raises:
        TargetError: it does not exist.
    """
    # A user's own code may be edited while a notebook or a sweep runs.
    return _read_once(target) if target.startswith("trainer.") else _read(target)


def _read(target: str) -> Signature | None:
    statement, module = _locate(target)
    return _of_class(statement, module) or _of_function(statement, module)


_read_once = functools.cache(_read)


def constant(target: str, name: str, default: Any = None, *, inherited: bool = True) -> Any:
    """Return the attribute that a class, or one that it extends, assigns as a literal.

    Returns:
        The value, or `...` if only an import could find it, or if the object computes it.
    """
    try:
        statement, module = _locate(target)
    except TargetError:
        return ...
    return _constant(statement, module, name, default, inherited=inherited)


def _constant(
    node: ast.stmt | None, module: _Module, name: str, default: Any, *, inherited: bool = True
) -> Any:
    if not isinstance(node, ast.ClassDef) or any(_computes(part, name) for part in ast.walk(node)):
        return ...
    assignments = (part for part in reversed(node.body) if isinstance(part, _Assignment))
    for statement in assignments:
        if statement.value is not None and ast.unparse(_targets(statement)[0]) == name:
            return _literal(statement.value)
    found = default
    for base in node.bases if inherited else ():
        if isinstance(base, ast.Name) and base.id in ("ABC", "Protocol"):
            continue
        value = _constant(*module.definition(base), name, default)
        if value is not ... and value != default:
            return value
        found = ... if value is ... else found
    return found


def _computes(node: ast.AST, name: str) -> bool:
    """Return whether a part of a class is a property of a name, or sets it on an object."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store) and node.attr == name
    return isinstance(node, _Function) and node.name == name


def _literal(expression: ast.expr) -> Any:
    """Return the value of a literal; `...` stands for everything else."""
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError):
        return ...


def source(module: str) -> Path | None:
    """Return the source file of a module, which is not imported, or None."""
    try:
        spec, rest = _deepest_module(module.split("."))
    except TargetError:
        return None
    return None if rest else _file(spec)


def _locate(target: str) -> tuple[ast.stmt | None, _Module]:
    """Return the statement, if read, and the module of `target`, or raise a TargetError."""
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError(" must be a dotted path; write package.module.name")
    spec, rest = _deepest_module(parts)
    file = _file(spec)
    is_namespace = spec is not None and spec.loader is None
    if parts[0] in _OPAQUE or (file is None and not is_namespace):
        return None, _Module()
    if spec is None or not rest:
        raise TargetError(" is a module; add the name of a function or class in it")
    module = _parse(file, file.stat().st_mtime_ns) if file else _Module()
    name, *inner = rest
    if name in module.bound:
        return (None if inner else module.bound[name]), module
    if "*" in module.bound or "__getattr__" in module.bound:
        return None, module
    modules = pkgutil.iter_modules(spec.submodule_search_locations or [])
    names = [*module.bound, *(item.name for item in modules)]
    near = did_you_mean(name, [word for word in names if not word.startswith("_")])
    missing = f"no module '{name}'" if inner else f"no '{name}'"
    raise TargetError(f": {missing} in {'.'.join(parts[: -len(rest)])}{near}")


def _deepest_module(parts: list[str]) -> tuple[ModuleSpec | None, list[str]]:
    """Return the last module that a dotted path names, and the names in it.

    Nothing is imported, as importlib's own search would import the packages on the way.

    Raises:
        TargetError: the first name is no module.
    """
    first, *rest = parts
    loaded = sys.modules.get(first)
    try:
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None and loaded is None:
        hint = (
            "; did you mean 'tensorflow'?"
            if first == "tf"
            else "; install it, or start the command in its directory"
        )
        raise TargetError(f": no module named '{first}'{hint}")
    folders = getattr(loaded, "__path__", spec and spec.submodule_search_locations)
    while rest and folders:
        finders = filter(None, map(pkgutil.get_importer, folders))
        inner = next(filter(None, (finder.find_spec(rest[0]) for finder in finders)), None)
        if inner is None:
            break
        spec, folders, rest = inner, inner.submodule_search_locations, rest[1:]
    return spec, rest


def _file(spec: ModuleSpec | None) -> Path | None:
    """Return the source file of a module, or None if it is C code, or a folder."""
    file = Path(spec.origin) if spec and spec.origin else None
    return file if file and file.suffix == ".py" and file.is_file() else None


@functools.lru_cache(maxsize=256)
def _parse(source: Path, changed_ns: int) -> _Module:
    """Return the module in a file; `changed_ns` has a file that changed parsed again."""
    try:
        return _Module(_bindings(ast.parse(source.read_bytes())))
    except SyntaxError as error:
        raise TargetError(f" cannot be read: {source}:{error.lineno}: {error.msg}") from error


def _bindings(block: ast.AST) -> dict[str, ast.stmt]:
    """Return the statement that binds each top-level name, also within `if` and `try`."""
    bound: dict[str, ast.stmt] = {}
    for statement in ast.iter_child_nodes(block):
        if isinstance(statement, _Function | ast.ClassDef):
            bound[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for item in statement.names:
                bound[(item.asname or item.name).split(".")[0]] = statement
        elif isinstance(statement, _Assignment):
            for target in _targets(statement):
                names = (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
                bound |= dict.fromkeys(names, statement)
        elif isinstance(statement, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            bound |= _bindings(statement)
    return bound


def _targets(statement: _Assignment) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _of_class(node: ast.stmt | None, module: _Module) -> Signature | None:
    if not isinstance(node, ast.ClassDef):
        return None
    for statement in node.body:
        if isinstance(statement, _Function) and statement.name == "__init__":
            signature = _of_function(statement, module)
            return signature and signature.replace(parameters=[*signature.parameters.values()][1:])
    if node.decorator_list or node.keywords or len(node.bases) > 1:
        return None
    if not node.bases:
        return Signature()
    base, owner = module.definition(node.bases[0])
    return _of_class(base, owner) if base is not node else None


@functools.lru_cache(maxsize=1024)
def _of_function(node: ast.stmt | None, module: _Module) -> Signature | None:
    if not isinstance(node, _Function):
        return None
    parameters = _parameters(node.args, module)
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "takes":
            parameters = [*parameters[1:], *_fields(*module.definition(decorator.args[0]))]
        elif ast.unparse(decorator).split(".")[-1] not in _TRANSPARENT_DECORATORS:
            return None
    return Signature(parameters)


def _fields(node: ast.stmt | None, module: _Module) -> Iterator[Parameter]:
    """Yield the fields of a dataclass whose options a function has by `annotations.takes`."""
    for item in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(item, ast.AnnAssign):
            yield Parameter(
                ast.unparse(item.target),
                Parameter.KEYWORD_ONLY,
                default=_literal(item.value) if item.value else Parameter.empty,
                annotation=evaluate(item.annotation, module.names),
            )


def _parameters(spec: ast.arguments, module: _Module) -> list[Parameter]:
    """Return the parameters that Python makes of a definition, but for what it would import."""
    bare = {**vars(spec), "defaults": [], "kw_defaults": [None] * len(spec.kwonlyargs)}
    stub = ast.Expression(ast.Lambda(ast.arguments(**bare), ast.Constant(None)))
    function = eval(compile(ast.fix_missing_locations(stub), "<signature>", "eval"))
    defaults = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    function.__defaults__ = tuple(_default(value, module) for value in spec.defaults)
    function.__kwdefaults__ = {
        item.arg: _default(value, module) for item, value in defaults if value
    }
    function.__annotations__ = {
        item.arg: evaluate(item.annotation, module.names)
        for item in ast.walk(spec)
        if isinstance(item, ast.arg) and item.annotation
    }
    return list(inspect.signature(function).parameters.values())


def _default(expression: ast.expr, module: _Module) -> Any:
    name = expression.id if isinstance(expression, ast.Name) else ""
    return _literal(module.assigned.get(name, expression))
