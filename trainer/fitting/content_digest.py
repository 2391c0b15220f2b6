"""A digest of what an object is, the same in every process that makes the object by the same code.

Pickles are no such thing: they hold line numbers, random identifiers, and sets in any order.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainer.errors import ConfigError
from trainer.fitting import keras_pickling
from trainer.text import first_line

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_NOT_CODE = {
    "__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__qualname__",
    "__static_attributes__", "__annotations__", "__abstractmethods__", "_abc_impl",
}  # fmt: skip


def digest_of(item: Any, what: str, reduce: Callable[[Any], Any]) -> str:
    """Return a digest of an object: of code, constants, attributes, and all values that it uses.

    Comments, docstrings, line numbers and the order of sets are no part of it.

    Args:
        reduce: returns how an object is pickled; NotImplemented: by its own method.

    Raises:
        ConfigError: it holds something that cannot be pickled.
    """
    digest = _Digest(what, reduce)
    digest.add(item)
    return digest.hexdigest()[:12]


def not_passed(what: str, item: Any, error: Exception, place: str = "it") -> ConfigError:
    """Return an error about an object that cannot be pickled."""
    return ConfigError(
        f"{what}: {place or 'it'} ({type(item).__name__}) cannot be passed to the processes that "
        f"train ({first_line(error)[:100]}); make it inside a function, and give fit that function"
    )


class _Digest:
    def __init__(self, what: str, reduce: Callable[[Any], Any]) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no other object gets an id that was seen
        self._place = [what]
        self._reduce = reduce

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _text(self, *words: object) -> None:
        self._hash.update(f"{words}\n".encode(errors="surrogatepass"))

    def add(self, item: Any) -> None:
        """Add an object, and what it holds; one that was added before is only referred to."""
        if isinstance(item, _PLAIN) and type(item) in _PLAIN:
            self._text(type(item).__name__, item)
            return
        if id(item) in self._seen and not isinstance(item, tuple):
            self._text("seen", self._seen[id(item)])
            return
        self._seen[id(item)] = len(self._seen)
        self._alive.append(item)
        kind = type(item)
        if kind in (tuple, list):
            self._text(kind.__name__, len(item))
            for inner in item:
                self.add(inner)
        elif kind is dict:
            self._text("dict", len(item))
            for key, value in item.items():
                self.add(key)
                self._named(str(key), value)
        elif kind in (set, frozenset):
            self._text("set", sorted(self._apart(member) for member in item))
        elif isinstance(item, np.ndarray) and not item.dtype.hasobject:
            self._text("array", item.dtype.str, item.shape)
            self._hash.update(np.ascontiguousarray(item).data.cast("B"))
        elif isinstance(item, types.CodeType):
            self._code(item)
        elif isinstance(item, types.CellType):
            self.add(_content(item))
        elif isinstance(item, types.ModuleType):
            self._text("module", item.__name__)
        else:
            self._reduced(item)

    def _named(self, name: str, value: Any) -> None:
        self._place.append(name)
        self.add(value)
        self._place.pop()

    def _apart(self, item: Any) -> str:
        other = _Digest(self._place[-1], self._reduce)
        other.add(item)
        return other.hexdigest()

    def _reduced(self, item: Any) -> None:
        try:
            reduced = self._reduce(item)
            if reduced is NotImplemented and isinstance(item, types.FunctionType | type):
                reduced = f"{item.__module__}.{item.__qualname__}"
            elif reduced is NotImplemented:
                reducer = copyreg.dispatch_table.get(type(item))
                reduced = reducer(item) if reducer else item.__reduce_ex__(4)
            if isinstance(reduced, tuple):
                reduced = keras_pickling.identity(item, reduced)
        except Exception as error:  # of any class
            place = " of ".join(reversed(self._place[1:]))
            raise not_passed(self._place[0], item, error, place) from error
        if isinstance(reduced, str):
            self._text("name", reduced)
        elif isinstance(item, types.FunctionType):
            self._function(item)
        elif isinstance(item, type):
            self._class(item)
        else:
            make, arguments, *rest = reduced
            self.add(make)
            self.add(arguments)
            for part in rest:
                self.add(list(part) if isinstance(part, Iterator) else part)

    def _function(self, item: types.FunctionType) -> None:
        self._text("function", item.__name__)
        self.add(item.__code__)
        self.add([item.__defaults__, item.__kwdefaults__, dict(vars(item))])
        cells = zip(item.__code__.co_freevars, item.__closure__ or (), strict=True)
        values = {name: _content(cell) for name, cell in cells}
        names = sorted(set(_globals(item.__code__)) & item.__globals__.keys())
        values |= {name: item.__globals__[name] for name in names}
        if keras_pickling.is_of_keras(item.__module__):
            values = keras_pickling.unnumbered(values)
        self._named(item.__name__, values)

    def _class(self, item: type) -> None:
        self._text("class", item.__name__)
        self.add([type(item), *item.__bases__])
        for name, value in sorted(vars(item).items()):
            if name in _NOT_CODE or isinstance(
                value, types.GetSetDescriptorType | types.MemberDescriptorType
            ):
                continue
            if isinstance(value, property):
                value = (value.fget, value.fset, value.fdel)
            elif isinstance(value, staticmethod | classmethod):
                value = (type(value), value.__func__)
            self._text(name)
            self._named(f"{item.__name__}.{name}", value)

    def _code(self, code: types.CodeType) -> None:
        # Whether the first constant is a docstring, which is used by none of the instructions.
        used = {i.arg for i in dis.get_instructions(code) if i.opcode in dis.hasconst}
        constants = [c for number, c in enumerate(code.co_consts) if number in used]
        self._text("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        self._text(code.co_cellvars, code.co_flags, code.co_exceptiontable, code.co_argcount)
        self._text(code.co_posonlyargcount, code.co_kwonlyargcount)
        self.add(constants)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return NotImplemented


def _globals(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code reads from its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)
