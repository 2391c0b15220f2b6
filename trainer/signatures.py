"""Reads the options of a dotted path from its source text, importing nothing: TensorFlow would cost seconds. No TensorFlow."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.rules import did_you_mean

# These build their names while they are imported; their source says nothing. The worker looks once it has imported them.
_OPAQUE = ("tensorflow", "tf_keras", "keras")
_TRANSPARENT_DECORATORS = ("staticmethod", "classmethod", "cache", "lru_cache")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class TargetError(LookupError):
    """A dotted path that leads nowhere; the message is the rest of a sentence."""


@dataclass(frozen=True)
class Option:
    """One parameter: its name, its annotation as source, and whether it has no default."""

    name: str
    annotation: ast.expr | None
    required: bool


@dataclass(frozen=True)
class Signature:
    """What a function, or a class's constructor, accepts.

    Attributes:
        positional: parameters that may be passed by position, in order.
        keywords: keyword-only parameters.
        takes_any: whether it has `**kwargs`.
        names: what the module assigns at top level, where an annotation's alias may be found.
    """

    positional: tuple[Option, ...]
    keywords: tuple[Option, ...]
    takes_any: bool
    names: Mapping[str, ast.expr]


def read(target: str) -> Signature | None:
    """Finds the signature of `target`, or None where only importing could tell (C code, re-exports, decorators).

    Raises:
        TargetError: it does not exist.
    """
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError("must be a dotted path; write package.module.name")
    places = _top_level(parts[0])
    if parts[0] in _OPAQUE or places is None:
        return None
    for depth, name in enumerate(parts[1:], start=1):
        inner = _inside(places, name)
        if not inner:
            return _in_module(places, parts, depth)
        places = inner
    raise TargetError("is a module; add the name of a function or class in it")


def _top_level(name: str) -> list[Path] | None:
    """Gives a top-level module's file, or its directories and file; None if it has no source."""
    loaded = sys.modules.get(name)
    try:
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        if loaded is not None:
            return None
        hint = "; did you mean 'tensorflow'?" if name == "tf" else "; install it, or start the command in the directory it lies in"
        raise TargetError(f"no module named '{name}'{hint}")
    places = [Path(place) for place in getattr(loaded, "__path__", None) or spec.submodule_search_locations or []]
    if spec.origin and Path(spec.origin).is_file():
        places.append(Path(spec.origin))
    return places if any(place.suffix == ".py" or place.is_dir() for place in places) else None


def _inside(places: Iterable[Path], name: str) -> list[Path]:
    """Gives the same for the sub-module `name` of a package at `places`; empty if there is none."""
    # importlib's own search would import the parents, and with them whatever they import.
    for place in places:
        package = place / name
        if (package / "__init__.py").is_file():
            return [package, package / "__init__.py"]
        if (place / f"{name}.py").is_file():
            return [place / f"{name}.py"]
        if package.is_dir() and any(package.rglob("*.py")):
            return [package]  # a namespace package has no file of its own
    return []


def _in_module(places: Iterable[Path], parts: list[str], depth: int) -> Signature | None:
    """Looks for `parts[depth:]` in the module `parts[:depth]`, which is at `places`."""
    module, name, rest = ".".join(parts[:depth]), parts[depth], parts[depth + 1 :]
    files = [file for place in places for file in ([place] if place.suffix == ".py" else place.iterdir())]
    if any(file.name.startswith(f"{name}.") and file.suffix in (".so", ".pyd") for file in files):
        return None
    source = next((place for place in places if place.suffix == ".py"), None)
    bound = _bindings(_parse(source)) if source else {}
    if name not in bound:
        if "*" in bound or "__getattr__" in bound:
            return None
        known = [word for word in [*bound, *(file.stem for file in files)] if not word.startswith(("_", "."))]
        kind = f"no module '{name}'" if rest else f"no '{name}'"
        raise TargetError(f"{kind} in {module}{did_you_mean(name, known)}")
    names = {key: value.value for key, value in bound.items() if isinstance(value, ast.Assign)}
    found = bound[name]
    if isinstance(found, ast.ClassDef):
        return _of_class(found, bound, names) if not rest else None
    return _of_function(found, names) if isinstance(found, _Function) and not rest else None


def _parse(source: Path) -> list[ast.stmt]:
    try:
        return ast.parse(source.read_bytes()).body
    except SyntaxError as error:
        raise TargetError(f"cannot be read: {source}:{error.lineno}: {error.msg}") from error


def _bindings(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    """Gives what each top-level name of a module is bound by, also within `if` and `try`."""
    bound: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, _Function | ast.ClassDef):
            bound[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0]: statement for alias in statement.names}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bound |= {node.id: statement for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            handlers = [child for handler in getattr(statement, "handlers", []) for child in handler.body]
            bound |= _bindings([*inner, *handlers])
    return bound


def _of_class(node: ast.ClassDef, bound: Mapping[str, ast.stmt], names: Mapping[str, ast.expr]) -> Signature | None:
    for statement in node.body:
        if isinstance(statement, _Function) and statement.name == "__init__":
            signature = _of_function(statement, names)
            return signature and Signature(signature.positional[1:], signature.keywords, signature.takes_any, names)
    if node.decorator_list or node.keywords or len(node.bases) > 1:
        return None
    if not node.bases:
        return Signature((), (), False, names)
    parent = bound.get(node.bases[0].id) if isinstance(node.bases[0], ast.Name) else None
    return _of_class(parent, bound, names) if isinstance(parent, ast.ClassDef) and parent is not node else None


def _of_function(node: _Function, names: Mapping[str, ast.expr]) -> Signature | None:
    decorators = {getattr(decorator, "id", None) or getattr(decorator, "attr", None) for decorator in node.decorator_list}
    if not decorators <= set(_TRANSPARENT_DECORATORS):
        return None
    arguments = [*node.args.posonlyargs, *node.args.args]
    first_default = len(arguments) - len(node.args.defaults)
    positional = tuple(Option(item.arg, item.annotation, place < first_default) for place, item in enumerate(arguments))
    keywords = tuple(
        Option(item.arg, item.annotation, default is None)
        for item, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    )
    return Signature(positional, keywords, node.args.kwarg is not None, names)
