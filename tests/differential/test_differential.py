"""Random Keras programs are trained as `fit` trains them, on every layout."""

import ast
from dataclasses import replace

import numpy as np
import pytest

from tests.differential.catalog import LAYERS, LOSSES, METRICS, OPTIMIZERS, SCHEDULES, Choice
from tests.differential.comparison import compare
from tests.differential.grammar import allowed, draw
from tests.differential.program import Data, Input, Optimizer, Output, Program
from tests.differential.results import Results, difference
from tests.differential.shrink import shrunk, simpler
from tests.differential.source import script
from tests.differential.steps import STEPS
from tests.differential.worker import LAYOUTS, run

SEED = 0
QUICK = (0, 2, 4, 8)
FOUND = (1072, 1090, 1165, 1416, 3584, 3615, 3648, 3650, 3722, 3826)
"""Programs that were trained otherwise once, each for another reason."""
LARGE = (7, 11, 16, 20, 27, 3584)
"""Programs that take more than 15 s."""
SLOW = sorted({1, 3, 5, 6, 9, 10, *range(11, 30), *FOUND} - set(LARGE))
LONG = range(30, 70)
BLOCK = 20
IN_PROCESS = tuple(name for name in LAYOUTS if name not in ("multi_worker", "killed", "again"))


def assert_no_defects(numbers, layouts):
    """Run programs; fail with the scripts of those that show a defect."""
    reports = [run(SEED, n, layouts=layouts, shrinks=False) for n in numbers]
    assert not [report.text for report in reports if report.outcome.is_defect]


@pytest.mark.parametrize("number", QUICK)
def test_program_is_trained_as_fit_trains_it(number):
    assert_no_defects(range(number, number + 1), IN_PROCESS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [*SLOW, *(pytest.param(number, marks=pytest.mark.long) for number in LARGE)]
)
def test_further_program_is_trained_as_fit_trains_it(number):
    assert_no_defects(range(number, number + 1), LAYOUTS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("first", LONG[::BLOCK])
def test_many_programs_are_trained_as_fit_trains_them(first):
    """Each in this process, and every tenth with workers, kills and a repetition."""
    for number in range(first, first + BLOCK):
        assert_no_defects([number], IN_PROCESS if number % 10 else LAYOUTS)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_sequence_of_batches_is_trained_as_fit_trains_it(library):
    data = Data(source="sequence", train=20)  # the last batch is short
    assert compare(Program(library=library, data=data, steps=4), ["mirrored"]).kind == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_loss_that_a_layer_alone_adds_is_trained_as_fit_trains_it(library, monkeypatch):
    monkeypatch.setitem(LOSSES, "none", Choice("None", ("number",)))
    parts = {"inputs": (Input(flat="dense"),), "outputs": (Output(loss="none"),)}
    program = Program(library=library, **parts, layers=("penalty",), steps=3)
    outcome = compare(program, ["mirrored", "shards", "accumulate"])
    assert (outcome.kind, outcome.refusals) == ("equal", {}), outcome.detail


def test_every_program_is_python_and_keeps_the_rules():
    for number in range(300):
        program = draw(3, number)
        ast.parse(script(program, "A program."))
        assert allowed(program) == program


@pytest.mark.slow
def test_everything_in_the_catalog_is_drawn():
    programs = [draw(4, number) for number in range(2500)]
    outputs = [output for program in programs for output in program.outputs]
    drawn = {
        "losses": {output.loss for output in outputs},
        "metrics": {name for output in outputs for name in output.metrics},
        "weighted": {name for output in outputs for name in output.weighted_metrics},
        "layers": {name for program in programs for name in program.layers},
        "steps": {program.step for program in programs} - {""},
        "optimizers": {program.optimizer.name for program in programs},
        "schedules": {program.optimizer.schedule for program in programs} - {""},
    }
    assert drawn == {
        "losses": set(LOSSES),
        "metrics": set(METRICS),
        "weighted": set(METRICS),
        "layers": set(LAYERS),
        "steps": set(STEPS),
        "optimizers": set(OPTIMIZERS),
        "schedules": set(SCHEDULES),
    }


def test_smaller_programs_are_python_and_end():
    for number in range(20):
        program, count = draw(5, number), 0
        while (candidates := list(simpler(program))) and count < 100:
            program, count = candidates[-1], count + 1
            ast.parse(script(program, ""))
        assert count < 100


@pytest.mark.slow
@pytest.mark.long
def test_wrong_update_is_noticed_and_the_program_made_smaller():
    """Of a trainer that takes a learning rate that is 1 % too large wherever there is momentum."""
    from tests.differential import comparison, keras_run

    def train(program, module, layout):
        item = program.optimizer
        if "momentum" in dict(item.options):
            program = replace(program, optimizer=replace(item, rate=1.01 * item.rate))
        return keras_run.fit(program, comparison.imported(program))

    def compare(program, layouts):
        return comparison.compare(program, layouts, train)

    momentum = Optimizer("SGD", 0.1, (("momentum", "0.9"), ("nesterov", "True")))
    program = Program(
        library="keras",
        form="subclassed",
        inputs=(Input("scalar", flat="reshape"), Input("vector", flat="dense")),
        outputs=(Output(metrics=("mae", "own_rmse")),),
        layers=("layer_norm",),
        optimizer=momentum,
        steps=2,
    )
    outcome = compare(program, [])
    assert (outcome.kind, outcome.layout) == ("different", "one_device")
    smaller, outcome = shrunk(program, outcome, compare)
    assert outcome.kind == "different"
    rest = replace(momentum, options=(("momentum", "0.9"),))
    assert smaller == Program(optimizer=rest)
    assert compare(replace(program, optimizer=Optimizer()), []).kind == "equal"


def test_error_that_is_no_refusal_is_a_defect():
    from tests.differential import comparison
    from tests.differential.steadfast_run import Crashed, Refused

    def crashes(program, module, layout):
        raise Crashed("TypeError: no")

    def refuses(program, module, layout):
        raise Refused("model: no; add yes")

    crashed = comparison.compare(Program(steps=1), [], crashes)
    assert crashed.is_defect
    refused = comparison.compare(Program(steps=1), [], refuses)
    assert (refused.kind, refused.is_defect) == ("refused", False)


def test_rounding_is_no_difference_and_a_missing_metric_is_one():
    start = [np.zeros([3])]
    results = Results({"loss": [1.0]}, [np.array([0.1, 0.2, 0.3])], [], start)
    limits = results.tolerances()
    rounded = Results({"loss": [1.0 + 1e-6]}, [np.array([0.1, 0.2, 0.3 + 1e-7])], [])
    assert difference(results, rounded, limits) is None
    assert difference(results, rounded) is not None
    moved = difference(results, Results({"loss": [1.0]}, [np.array([0.1, 0.2, 0.303])], []), limits)
    assert moved is not None
    assert moved.kind == "weight"
    missing = difference(results, Results({}, [np.array([0.1, 0.2, 0.3])], []), limits)
    assert missing is not None
    assert missing.name == "names"
