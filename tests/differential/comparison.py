"""Runs a program in Keras and in Steadfast, and says how they compare."""

import functools
import importlib
import os
import sys
import time
import traceback

from tests.differential import keras_run, steadfast_run
from tests.differential.catalog import BY_PART, NOISY
from tests.differential.program import (
    CRASHED,
    DIFFERENT,
    EQUAL,
    KERAS_REFUSES,
    REFUSED,
    Outcome,
    reason,
)
from tests.differential.results import difference, widened
from tests.differential.source import script
from tests.differential.steadfast_run import PROCESSES, Crashed, Refused
from tests.support.scratch import new_folder

SHIFT = 1e-6
EXACT = {"killed": "undisturbed", "again": "undisturbed", "mirrored_shards": "shards"}
"""Layouts that are the same as another to the bit."""


def compare(program, layouts, train=steadfast_run.train):
    """Run a program with `fit`, on one device and on layouts, and compare."""
    began = time.monotonic()
    outcome = _compare(program, layouts, train)
    return Outcome(**{**vars(outcome), "secs": time.monotonic() - began})


def _compare(program, layouts, train):
    module = imported(program)
    try:
        expected = keras_run.fit(program, module)
    except Exception as error:
        detail = f"{type(error).__name__}: {_first(error)}"
        return Outcome(KERAS_REFUSES, "fit", detail, reason(detail))
    comparison = _Comparison(program, module, expected, train)
    # What trains as fit does on a layout is not run on one device too: most of the time is tracing.
    if plan := list(_short_plan(program, layouts)):
        outcome = comparison.outcome(plan)
        if outcome.kind == EQUAL and not outcome.refusals:
            return outcome
    return comparison.outcome(_plan(program, layouts))


class _Comparison:
    """Compares the results of one program, each of which it makes once."""

    def __init__(self, program, module, expected, train):
        self._program = program
        self._module = module
        self._train = train
        self._runs = {"fit": expected}
        self._refusals = {}
        self._in_graph = None
        self._tolerances = None

    def outcome(self, plan):
        """Return how the layouts of a plan compare."""
        for layout, base, exact in plan:
            for needed in (base, layout):
                if needed in self._runs or needed in self._refusals:
                    continue
                try:
                    self._runs[needed] = self._train(self._program, self._module, needed)
                except Refused as refusal:
                    if "became nan" in str(refusal) and self._runs["fit"].diverges:
                        return Outcome(EQUAL, refusals=self._refusals)
                    if needed == "one_device":
                        return Outcome(REFUSED, needed, str(refusal), reason(str(refusal)))
                    self._refusals[needed] = str(refusal)
                except Crashed as crash:
                    return Outcome(CRASHED, needed, str(crash), reason(str(crash)), self._refusals)
            if layout in self._refusals or base in self._refusals:
                continue
            if base == "fit" and set(self._program.layers) & NOISY:
                continue
            if found := self._difference(base, self._runs[layout], exact=exact):
                sides = f"{layout} against {base}: {found}"
                return Outcome(DIFFERENT, layout, sides, f"{layout} {found.kind}", self._refusals)
        return Outcome(EQUAL, refusals=self._refusals)

    def _difference(self, base, got, *, exact):
        wanted, expected = self._runs[base], self._runs["fit"]
        if exact:
            return difference(wanted, got)
        limits = expected.tolerances()
        if (found := difference(wanted, got, limits)) is None:
            return None
        if base == "fit":  # what counts is what users get
            if self._in_graph is None:
                self._in_graph = self._fit(eagerly=False)
            wanted = self._in_graph
            if (found := difference(wanted, got, limits)) is None:
                return None
        if found.name == "names" or "shape" in found.expected:
            return found
        if self._tolerances is None:
            self._tolerances = widened(limits, expected, self._fit(SHIFT))
        return difference(wanted, got, self._tolerances)

    def _fit(self, shift=0.0, *, eagerly=True):
        return keras_run.fit(self._program, self._module, shift, eagerly=eagerly)


def _plan(program, layouts):
    """Yield layouts to run, one device first, with what to compare each, and whether to the bit."""
    yield "one_device", "fit", False
    for layout in layouts:
        if base := EXACT.get(layout):
            yield layout, base, True
        elif not _is_by_part(program):
            yield layout, "one_device", False


def _short_plan(program, layouts):
    """Yield the layouts, if one of them can be compared with `fit` in place of one device."""
    if _is_by_part(program):
        return
    alike = [EXACT.get(layout, layout) for layout in layouts]
    for layout in dict.fromkeys(alike):
        yield layout, "fit", False
    if alike:
        yield from ((name, EXACT[name], True) for name in layouts if name in EXACT)


def _is_by_part(program):
    texts = program.data.lengths and any(item.kind == "text" for item in program.inputs)
    return texts or bool(set(program.layers) & BY_PART)  # texts: as long as the longest of a part


def layouts_of(number, layouts, every):
    """Return the layouts of a program: one, and of those with processes one in `every` programs."""
    here = [layout for layout in layouts if layout not in PROCESSES]
    others = [layout for layout in layouts if layout in PROCESSES]
    chosen = [here[number % len(here)]] if here else []
    if others and number % every == 0:
        chosen.append(others[number // every % len(others)])
    return chosen


@functools.cache
def _modules():
    """Return a folder from which this process imports."""
    folder = new_folder()
    sys.path.append(str(folder))
    return folder


def imported(program):
    """Write a program to a module of its own, and import it."""
    name = f"program_{os.getpid()}_{len(list(_modules().glob('*.py')))}"
    (_modules() / f"{name}.py").write_text(script(program, "A program."))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _first(error):
    lines = str(error).strip().splitlines()
    return lines[0] if lines else traceback.format_exception_only(error)[0]
