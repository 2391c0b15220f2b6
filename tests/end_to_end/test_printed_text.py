"""What a page shows and what a command prints."""

import pytest

from tests.support.printed_text import matches


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("loss 0.3437, 0:07, 71 % start", "loss -1.5, 1:00:07, 9 % start"),
        ("rate 1.5e-05 at 2026-11-26 03:40:52", "rate 0.3 at 2027-01-02 13:00"),
        ("1,204 KiB in 12 s", "9 KiB in 1,300 s"),
        ("-> runs/cnn-digits-8b34c356", "-> runs/cnn-digits-0123abcd"),
        ("step  loss\n  12   0.1", "step   loss\n 12   10.1"),
        ("Time: 71 % start, 16 % steps", "Time: 50 % steps, 50 % start"),
        ("a ... b\n...\nend", "a 1 2 b\nend"),
        ("error: (0.5)\n...", "error: (0.5)\nanything\nat all"),
    ],
)
def test_matches_accepts_what_another_run_prints(expected, printed):
    assert matches(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("step 12", "step 13"),
        ("step 12", "step 12.5"),
        ("loss 0.3437", "loss 0"),
        ("loss 0.3437", "loss nan"),
        ("12 steps", "13 steps"),
        ("12 s", "12 steps"),
        ("runs/cnn-digits-8b34c356", "runs/cnn-digits-8b34c35"),
        ("a  b", "ab"),
        ("error: (0.5)", "error: (0.6)"),
        ("one\n...\ntwo", "one\ntwo\nthree"),
    ],
)
def test_matches_refuses_anything_else(expected, printed):
    assert not matches(expected, printed)
