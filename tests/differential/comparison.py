"""Runs a program in Keras and in Steadfast, and says how they compare."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.differential import keras_run, steadfast_run
from tests.differential.catalog import BY_PART, NOISY
from tests.differential.outcome import (
    CRASHED,
    DIFFERENT,
    EQUAL,
    KERAS_REFUSES,
    REFUSED,
    Outcome,
    reason,
)
from tests.differential.program import Program
from tests.differential.results import Difference, Results, difference, widened
from tests.differential.source import script
from tests.differential.steadfast_run import PROCESSES, Crashed, Refused
from tests.support.scratch import new_folder

SECS = 300
"""The longest that a program may take."""
SHIFT = 1e-6


Train = Callable[[Program, ModuleType, str], Results]
"""Trains a program on a layout, as `steadfast_run.train` does."""


def compare(
    program: Program, layouts: Sequence[str], train: Train = steadfast_run.train
) -> Outcome:
    """Run a program everywhere, and compare.

    Args:
        program: the program.
        layouts: those of `steadfast_run.LAYOUTS` besides one device.
        train: what trains it.
    """
    began = time.monotonic()
    try:
        with _limited():
            outcome = _compare(program, layouts, train)
    except TimeoutError as error:
        outcome = Outcome(CRASHED, detail=str(error), signature="timeout")
    return Outcome(**{**vars(outcome), "secs": time.monotonic() - began})


def _compare(program: Program, layouts: Sequence[str], train: Train) -> Outcome:
    module = imported(program)
    try:
        expected = keras_run.fit(program, module)
    except TimeoutError:
        raise
    except Exception as error:
        detail = f"{type(error).__name__}: {_first(error)}"
        return Outcome(KERAS_REFUSES, "fit", detail, reason(detail))
    refusals: dict[str, str] = {}
    runs: dict[str, Results] = {}
    tolerances: dict[str, float] | None = None

    def differs(wanted: Results, got: Results, *, exact: bool) -> Difference | None:
        nonlocal tolerances
        if exact:
            return difference(wanted, got)
        limits = expected.tolerances()
        if (found := difference(wanted, got, limits)) is None:
            return None
        if wanted is expected:  # what counts is what users get
            wanted = keras_run.fit(program, module, eagerly=False)
            if (found := difference(wanted, got, limits)) is None:
                return None
        if found.name == "names" or "shape" in found.expected:
            return found
        if tolerances is None:
            tolerances = widened(limits, expected, keras_run.fit(program, module, SHIFT))
        return difference(wanted, got, tolerances)

    for layout, base, exact in _plan(program, layouts):
        for needed in (base, layout):
            if needed in runs or needed in refusals or needed == "fit":
                continue
            try:
                runs[needed] = train(program, module, needed)
            except Refused as refusal:
                if needed == "one_device":
                    return Outcome(REFUSED, needed, str(refusal), reason(str(refusal)))
                refusals[needed] = str(refusal)
            except Crashed as crash:
                return Outcome(CRASHED, needed, str(crash), reason(str(crash)), refusals)
        if layout in refusals or base in refusals:
            continue
        wanted = expected if base == "fit" else runs[base]
        if base == "fit" and set(program.layers) & NOISY:
            continue
        if found := differs(wanted, runs[layout], exact=exact):
            sides = f"{layout} against {base}: {found}"
            return Outcome(DIFFERENT, layout, sides, f"{layout} {found.kind}", refusals)
    return Outcome(EQUAL, refusals=refusals)


def _plan(program: Program, layouts: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the layouts to run, with what to compare each, and whether to the bit."""
    by_part = bool(set(program.layers) & BY_PART)
    yield "one_device", "fit", False
    for layout in layouts:
        if layout == "killed":
            yield "killed", "undisturbed", True
        elif layout == "again":
            yield "again", "undisturbed", True
        elif layout == "mirrored_shards":
            yield "mirrored_shards", "shards", True
        elif not by_part:
            yield layout, "one_device", False


def layouts_of(number: int, layouts: Sequence[str], every: int) -> list[str]:
    """Return the layouts of a program: one, and of those with processes one in `every` programs."""
    here = [layout for layout in layouts if layout not in PROCESSES]
    others = [layout for layout in layouts if layout in PROCESSES]
    chosen = [here[number % len(here)]] if here else []
    if others and number % every == 0:
        chosen.append(others[number // every % len(others)])
    return chosen


@functools.cache
def _modules() -> Path:
    """Return a folder from which this process imports."""
    folder = new_folder()
    sys.path.append(str(folder))
    return folder


def imported(program: Program) -> ModuleType:
    """Write a program to a module of its own, and import it."""
    name = f"program_{os.getpid()}_{len(list(_modules().glob('*.py')))}"
    (_modules() / f"{name}.py").write_text(script(program, "A program."))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else traceback.format_exception_only(error)[0]


@contextmanager
def _limited() -> Iterator[None]:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"it takes more than {SECS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
