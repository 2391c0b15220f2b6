"""What the command learns from a Ray cluster, which is a fake."""

import sys
from types import SimpleNamespace

import pytest

from trainer.launch.engines import ray_connection


@pytest.mark.parametrize("state", ["PENDING", "CREATED", "RESCHEDULING"])
def test_group_that_was_created_has_places(monkeypatch, state):
    # As Ray does it: it does not wait for the answer.
    group = SimpleNamespace(wait=lambda secs: state == "CREATED" and secs > 0)
    module = SimpleNamespace(placement_group_table=lambda group: {"state": state})
    monkeypatch.setitem(sys.modules, "ray.util.placement_group", module)
    assert ray_connection.has_places(group) == (state == "CREATED")
