"""Schedules of failures, simulated; `python -m tests.simulate` plays more of them."""

import pytest

from tests.launch.simulated import simulated
from tests.simulate import LAYOUTS, Fault, World, play
from trainer.errors import CRASHED


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_rules_hold_in_every_schedule(first):
    assert play(range(first, first + 500)) is None


def play_alone(seed, *faults):
    """Play the schedule of a single process; return the first exit code, and the errors."""
    with simulated():
        command = World(seed, faults, LAYOUTS[0]).run().ended[0]
    return command.code, command.told


def test_stop_before_the_first_process_is_started_is_not_forgotten():
    assert play_alone(0, Fault("end", 4, 0)) == (143, [])


def test_stop_after_a_failure_does_not_say_that_the_state_in_memory_was_saved():
    code, told = play_alone(18, Fault("kill", 50.0, 0), Fault("end", 50.3, 0))
    assert (code, told) == (CRASHED, ["left without saving; there is no checkpoint yet"])
