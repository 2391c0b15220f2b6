"""Makes a program that shows a defect smaller, as long as it shows the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.differential.comparison import compare
from tests.differential.grammar import allowed
from tests.differential.outcome import Outcome
from tests.differential.program import Data, Input, Optimizer, Output, Program
from tests.differential.source import WIDE_KINDS

TRIES = 120
"""The most programs that are tried."""

Compare = Callable[[Program, Sequence[str]], Outcome]


def shrunk(
    program: Program, outcome: Outcome, compare: Compare = compare
) -> tuple[Program, Outcome]:
    """Return a smaller program with the same defect, and how it compares.

    Features are removed one after the other; what is left has none that could be removed alone.

    Args:
        program: a program that shows a defect.
        outcome: how it compares.
        compare: what compares a program on some layouts.
    """
    layouts = [] if outcome.layout in ("", "one_device") else [outcome.layout]
    seen = {program}
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in simpler(program):
            if candidate in seen:
                continue
            if len(seen) > TRIES:
                return program, outcome
            seen.add(candidate)
            found = compare(candidate, layouts)
            if (found.kind, found.signature) == (outcome.kind, outcome.signature):
                program, outcome, is_smaller = candidate, found, True
                break
    return program, outcome


def simpler(program: Program) -> Iterator[Program]:
    """Yield programs with one feature less, the largest first."""
    for candidate in _simpler(program):
        if (result := allowed(candidate)) != program and _is_whole(result):
            yield result


def _is_whole(program: Program) -> bool:
    """Return whether each output can be made of some input."""
    kinds = {item.kind for item in program.inputs}
    return all(
        kinds & set(WIDE_KINDS[output.shape])
        for output in program.outputs
        if output.shape in WIDE_KINDS
    )


def _simpler(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for number in range(len(program.outputs)):
            yield replace(program, outputs=_without(program.outputs, number))
    if len(program.inputs) > 1:
        for number in range(len(program.inputs)):
            yield replace(program, inputs=_without(program.inputs, number))
    yield replace(program, layers=())
    for number in range(len(program.layers)):
        yield replace(program, layers=_without(program.layers, number))
    yield replace(program, step="")
    yield replace(program, form="functional", built=True)
    yield replace(program, built=True)
    yield replace(program, optimizer=Optimizer())
    yield from _simpler_optimizers(program)
    for key, value in vars(Data()).items():
        yield replace(program, data=replace(program.data, **{key: value}))
    for number, item in enumerate(program.inputs):
        for other in (Input(), replace(item, masked=False), replace(item, wide="")):
            inputs = (*program.inputs[:number], other, *program.inputs[number + 1 :])
            yield replace(program, inputs=inputs)
    for number, output in enumerate(program.outputs):
        for simple in _simpler_outputs(output):
            yield program.with_output(number, simple)
    yield replace(program, epochs=1)
    for steps in (1, 2):
        if steps < program.steps:
            yield replace(program, steps=steps)


def _simpler_outputs(output: Output) -> Iterator[Output]:
    plain = replace(Output(), metrics=output.metrics, weighted_metrics=output.weighted_metrics)
    yield Output()
    yield plain
    for key in ("metrics", "weighted_metrics"):
        chosen = getattr(output, key)
        yield replace(output, **{key: ()})
        if len(chosen) > 1:
            for number in range(len(chosen)):
                yield replace(output, **{key: _without(chosen, number)})
    yield replace(output, loss_weight=None)
    yield replace(output, reduction="")
    yield replace(output, logits=False)
    yield replace(output, dtype="int64" if output.target == "class" else "float32")
    yield replace(output, squeezed=output.target == "class")
    if output.target in ("number", "flag", "one_hot"):
        yield replace(output, loss="mse", reduction="")
    if output.target == "class" and not output.logits:
        yield replace(output, loss="sparse", reduction="")
    if output.target in ("number", "flag"):
        yield replace(output, shape="column")


def _simpler_optimizers(program: Program) -> Iterator[Program]:
    item = program.optimizer
    yield replace(program, optimizer=replace(item, schedule=""))
    yield replace(program, optimizer=replace(item, by_key=False))
    yield replace(program, optimizer=replace(item, options=()))
    for number in range(len(item.options)):
        options = _without(item.options, number)
        yield replace(program, optimizer=replace(item, options=options))


def _without(values: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return (*values[:number], *values[number + 1 :])
