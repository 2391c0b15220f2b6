"""Refuses, from code that Keras calls, what a model does: in one line, as Keras adds its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def refuse(problem: str) -> NoReturn:
    """Raise a ConfigError on what a model does in `refusals_as_they_are`."""
    _current.refusal = ConfigError(problem)
    raise _current.refusal


@contextmanager
def refusals_as_they_are() -> Iterator[None]:
    """Call Keras inside: it raises another error, with what it knows about the call."""
    _current.refusal = None
    try:
        yield
    except ConfigError:
        if _current.refusal is None:
            raise
        raise _current.refusal from None
