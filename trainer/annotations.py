"""Annotations of an option: its range, and its effect on a continued run.

    width: Annotated[int, Ge(1)] = 32
    sizes: list[Annotated[int, Ge(1)]] = [3, 3]
    mode: Annotated[str, OneOf("max", "min")] = "max"
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.0
    path: Annotated[str | None, Exists("file"), Free(names_run=True)] = None

Signatures of targets are read as source, so arguments must be literals. Fields of the schema take
the same objects. `trainer.config.options.constraints` checks values; `trainer.runs.identity`
compares runs.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Bound:
    """A limit of a number."""

    limit: float

    symbol: ClassVar[str]

    def holds(self, value: float) -> bool:
        return bool(_COMPARISONS[self.symbol](value, self.limit))

    def __str__(self) -> str:
        return f"{self.symbol} {self.limit}"


class Ge(Bound):
    """At least `limit`."""

    symbol = ">="


class Gt(Bound):
    """More than `limit`."""

    symbol = ">"


class Le(Bound):
    """At most `limit`."""

    symbol = "<="


class Lt(Bound):
    """Less than `limit`."""

    symbol = "<"


@dataclass(frozen=True, init=False)
class OneOf:
    """One of some words, or a number of at least `or_at_least`, or above `or_above`.

    Of a list, each item must be one.
    """

    words: tuple[str, ...]
    number: Bound | None

    def __init__(
        self, *words: str, or_at_least: int | None = None, or_above: int | None = None
    ) -> None:
        least = None if or_at_least is None else Ge(or_at_least)
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "number", least if or_above is None else Gt(or_above))

    def __str__(self) -> str:
        number = "" if self.number is None else f" or {self.number}"
        return f"{', '.join(self.words)}{number}"


@dataclass(frozen=True)
class Exists:
    """The path of something that exists. A checkpoint is named by the prefix of its files."""

    what: Literal["path", "file", "directory", "checkpoint"] = "path"
    or_word: str | None = None

    def __str__(self) -> str:
        text = "exists" if self.what == "path" else self.what
        return f"{text} or {self.or_word}" if self.or_word else text


@dataclass(frozen=True)
class Each:
    """A rule for each item of a list, like `list[Annotated[int, Ge(1)]]`."""

    rules: tuple[Rule, ...]

    def __str__(self) -> str:
        return f"each: {', '.join(map(str, self.rules))}"


Rule = Bound | OneOf | Exists | Each
"""What limits the values of an option."""


@dataclass(frozen=True)
class Free:
    """Changes no number of the training; may change at any time.

    Attributes:
        names_run: whether another value names another run directory nevertheless. With
            `resume=<run>` it may change: the run trains longer, on other hardware, from moved data.
    """

    names_run: bool = False


@dataclass(frozen=True)
class Semantic:
    """Changes numbers, and the checkpoint still fits; may change if resume_allow names it.

    Attributes:
        apart: values that make other variables than the rest: a change from or to one of them is
            structural. Momentum of 0 needs no slots.
    """

    apart: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Structural:
    """Makes variables; may not change."""


Effect = Free | Semantic | Structural
"""What a change of an option does to a run that is continued."""

_Result = TypeVar("_Result")


def takes(options: type) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Give a function the fields of a dataclass as options; it gets the object that they make.

    @takes(ImageOptions)
    def photos(images: ImageOptions, *, path: str): ...

    photos(path="photos", crop=0.875)
    """
    fields = inspect.signature(options).parameters

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(function)
        def called(**values: Any) -> _Result:
            given = {name: values.pop(name) for name in fields if name in values}
            return function(options(**given), **values)

        signature = inspect.signature(function)
        parameters = [*list(signature.parameters.values())[1:], *fields.values()]
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return called

    return decorate


NOTES = (Ge, Gt, Le, Lt, OneOf, Exists, Free, Semantic, Structural)
