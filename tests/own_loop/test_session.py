"""What the run behind a loop of the user's own does whatever fails."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from trainer.cluster.messages import Channel, Phase
from trainer.own_loop.session import Session


def fail():
    raise OSError("the disk of the writer is full")


def test_checkpoint_in_the_background_is_awaited_though_closing_fails():
    events = []
    checkpointer = SimpleNamespace(
        restore_latest=lambda at_most: None,
        skipped=[],
        is_writing=True,
        wait=lambda: events.append("wait"),
    )
    nothing = lambda *arguments: None  # noqa: E731
    writers = [SimpleNamespace(close=fail), SimpleNamespace(close=lambda: events.append("closed"))]
    session = Session(
        total_steps=1,
        save_policies=[],
        save_timer=None,
        run_dir=None,
        make_checkpointer=lambda objects: (checkpointer, None),
        open_writers=lambda step: writers,
        ledger=SimpleNamespace(mark=nothing),
        channel=Channel(lambda message: events.append(message)),
        process_group=None,
        faults=SimpleNamespace(reached=nothing),
        requests=nothing,
    )
    session.begin({}, tf.Variable(0, dtype=tf.int64), nothing)
    events.clear()
    with pytest.raises(OSError, match="full"):
        session.close()
    assert events == ["closed", Phase("save", 0), "wait"]
