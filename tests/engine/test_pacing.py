"""The number of steps in a graph call."""

from trainer.engine.pacing import StepPacer


def test_pacer_doubles_after_short_calls_and_halves_after_long_ones():
    pacer = StepPacer("auto")
    pacer.record(1, 9.0)
    counts = []
    for secs in (0.1, 0.2, 0.49, 0.5, 2.0, 2.1, 5.0, 5.0, 5.0):
        pacer.record(pacer.count, secs)
        counts.append(pacer.count)
    assert counts == [2, 4, 8, 8, 8, 4, 2, 1, 1]


def test_pacer_does_not_double_after_call_cut_short_by_event():
    pacer = StepPacer("auto")
    pacer.record(1, 9.0)
    pacer.record(1, 0.1)
    pacer.record(1, 0.1)
    assert pacer.count == 2
    pacer.record(1, 3.0)
    assert pacer.count == 1
