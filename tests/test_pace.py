"""How many steps go into one call."""

import pytest

from trainer.pace import Pace


def test_the_first_call_is_compilation_and_teaches_nothing():
    pace = Pace("auto")
    assert (pace.count, pace.started) == (1, False)
    pace.took(1, 100.0)
    assert (pace.count, pace.started) == (1, True)
    pace = Pace("auto")
    pace.took(1, 0.001)
    assert pace.count == 1


def test_short_calls_double_the_count_and_long_ones_halve_it():
    pace = Pace("auto")
    pace.took(1, 9.0)
    counts = []
    for secs in (0.1, 0.2, 0.49, 0.5, 2.0, 2.1, 5.0, 5.0, 5.0):
        pace.took(pace.count, secs)
        counts.append(pace.count)
    assert counts == [2, 4, 8, 8, 8, 4, 2, 1, 1]


def test_a_call_cut_short_by_an_event_does_not_double():
    pace = Pace("auto")
    pace.took(1, 9.0)
    pace.took(1, 0.1)
    pace.took(1, 0.1)
    assert pace.count == 2
    pace.took(1, 3.0)
    assert pace.count == 1


@pytest.mark.parametrize("fixed", [1, 25, "25"])
def test_a_fixed_number_stays(fixed):
    pace = Pace(fixed)
    for secs in (9.0, 0.001, 0.001, 50.0):
        pace.took(pace.count, secs)
        assert pace.count == int(fixed)


def test_a_measured_block_is_learnt_from():
    pace = Pace("auto")
    for expected in (1, 2, 4):
        with pace.measured(pace.count):
            pass
        assert pace.count == expected
