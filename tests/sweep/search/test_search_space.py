"""Search spaces: what Hydra's sweep syntax means, and what is sampled."""

from random import Random

import pytest

from tests.sweep.simulated_search import parse
from trainer.errors import ConfigError
from trainer.sweep.search.search_space import Choice, NumberRange, parse_search_space


@pytest.mark.parametrize(
    ("text", "values", "values_to_check"),
    [
        ("a,b", Choice(("a", "b")), ("a", "b")),
        ("choice(1,2,2)", Choice(("1", "2")), ("1", "2")),
        ('choice("x y",b)', Choice((r"x\ y", "b")), (r"x\ y", "b")),
        ("interval(1,5)", NumberRange(1.0, 5.0), ("1.0", "5.0")),
        ("int(interval(16,128))", NumberRange(16, 128, 1), ("16", "17", "128")),
        ("tag(log,interval(1e-4,1e-1))", NumberRange(0.0001, 0.1, log=True), ("0.0001", "0.1")),
        ("tag(log,int(interval(1,64)))", NumberRange(1, 64, 1, log=True), ("1", "2", "64")),
        ("range(16,129,16)", NumberRange(16, 128, 16), ("16", "32", "128")),
        ("range(9,0,-3)", NumberRange(3, 9, 3), ("3", "6", "9")),
        ("range(0.0,0.5,0.25)", Choice(("0.0", "0.25")), ("0.0", "0.25")),
    ],
)
def test_ranges_follow_hydras_sweep_syntax(text, values, values_to_check):
    space = parse_search_space(parse("seed=1", f"key={text}"))
    assert space.fixed == ["seed=1"]
    assert space.ranges == {"key": values}
    assert values.values_to_check == values_to_check
    # The study stores a range as text.
    assert parse_search_space(parse(f"key={values}")).ranges == {"key": values}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "interval(5,1)",
            "must have finite bounds, the smaller first; write interval(low,high)",
        ),
        (
            "tag(log,interval(0,1))",
            "must be > 0 to be sampled on a log scale; raise its lower bound",
        ),
        (
            "tag(lgo,interval(1,2))",
            "must be tagged log, or not at all, got lgo; write tag(log,interval(1e-4,1e-1))",
        ),
        (
            "tag(log,range(1,9))",
            "must be an interval to be sampled on a log scale; write tag(log,int(interval(1,100)))",
        ),
    ],
)
def test_invalid_ranges_are_refused(text, rule):
    with pytest.raises(ConfigError) as raised:
        parse_search_space(parse("a=interval(2,1)", f"key={text}"))
    assert raised.value.problems[1:] == (f"key ({text}) {rule}",)
    with pytest.raises(ConfigError, match=r"key=range\(3,3\) matches nothing; list values"):
        parse_search_space(parse("key=range(3,3)"))


@pytest.mark.parametrize(
    "values",
    [
        NumberRange(0.0001, 0.1, log=True),
        NumberRange(-3.0, 1234.5),
        NumberRange(1, 64, 1, log=True),
        NumberRange(16, 128, 16),
    ],
)
def test_sampled_numbers_are_short_and_within_the_bounds(values):
    random = Random(0)
    samples = [values.sample(random) for _ in range(300)]
    for text in samples:
        assert len(text.partition("e")[0].lstrip("-0.").replace(".", "")) <= 6
        assert values.low <= float(text) <= values.high
        assert values.format(float(text)) == text
        assert not values.step or (int(text) - values.low) % values.step == 0
    assert len(set(samples)) == values.size or len(set(samples)) > 50


def test_ranges_are_sampled_equally():
    random = Random(1)
    log_range = NumberRange(0.0001, 1.0, log=True)
    samples = [float(log_range.sample(random)) for _ in range(1000)]
    for power in range(-4, 0):
        assert 200 < sum(10**power <= value < 10 ** (power + 1) for value in samples) < 300
    samples = [NumberRange(1, 3, 1).sample(random) for _ in range(900)]
    assert all(240 < samples.count(value) < 360 for value in "123")
