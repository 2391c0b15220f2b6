"""Batches that are gathered in the graph, during the step before."""

import pytest

from tests.support.training import assert_same_bits, engine, train
from trainer.engine.graph.loops.train_loop import TrainLoop

LONG = ["train.steps=7", "train.steps_per_loop=3", "augment.flip=true"]


def loop_body(run):
    """Return the graph of a step in an engine's compiled loop."""
    graphs = []
    run.loop.on_traced = graphs.append
    run.loop.trace(run.loop.feed.open(0))
    return graphs[-1]


def ancestors(operations):
    """Return operations and all that must be done before them, control inputs included."""
    found = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [*operation.control_inputs, *(x.op for x in operation.inputs)]
    return found


def test_step_does_not_wait_for_gathering(tmp_path):
    graph = loop_body(engine(tmp_path, "strategy=one_device", "augment=none"))
    operations = graph.get_operations()
    gathers = {operation for operation in operations if operation.type == "RandomIndexShuffle"}
    updates = {operation for operation in operations if operation.type.startswith("ResourceApply")}
    assert gathers
    assert updates
    assert not ancestors(updates) & gathers
    assert not ancestors(gathers) & updates


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_batches_gathered_ahead_are_those_of_their_steps(tmp_path, monkeypatch, strategy):
    ahead = train(tmp_path / "ahead", f"strategy={strategy}", *LONG)
    monkeypatch.setattr(TrainLoop, "_gather_ahead", lambda *arguments: [])
    assert_same_bits(ahead, train(tmp_path / "beside", f"strategy={strategy}", *LONG))
