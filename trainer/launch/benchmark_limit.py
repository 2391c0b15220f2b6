"""What limits a run, by the figures of mode=benchmark. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.runs.benchmark_record import BenchmarkRecord

_LARGE_SHARE = 0.25
"""An input or an exchange that takes this share of a step is what to change first."""
_LARGE_GAIN = 1.1
"""A change is proposed if it gives so many times the examples per second."""

_CHANGES = {
    "batch": "twice the examples on each replica (batch.per_replica={double}) give",
    "compile": "one replica with {option} gives",
}


@dataclass(frozen=True)
class Limit:
    """What to change first.

    Attributes:
        name: input, communication, batch, compile, or kernels: nothing but the work itself.
        text: what to do, with the figure that says so.
    """

    name: str
    text: str


def stalls(record: BenchmarkRecord) -> Limit | None:
    """Return input or communication, if one of them takes much of a step; None: neither does."""
    size = record.largest
    largest = max(size.input_wait, size.communication)
    if largest < _LARGE_SHARE:
        return None
    if size.input_wait == largest:
        return Limit(
            "input",
            f"input: steps wait for their data {_percent(size.input_wait)} of the time; fetch less "
            "or faster, or from memory",
        )
    advice = "exchange less often, with a larger batch.per_replica"
    if record.unit == "processes":
        advice += ", less (strategy.compress), or another way (strategy.communication)"
    return Limit(
        "communication",
        f"communication: it takes {_percent(size.communication)} of a step of {size.count} "
        f"{record.unit}; {advice}",
    )


def limit_of(record: BenchmarkRecord) -> Limit:
    """Return what to change first: what steps wait for, then what makes one replica faster."""
    if (stall := stalls(record)) is not None:
        return stall
    name = max(record.gains, key=lambda name: record.gains[name], default="")
    gain = record.gains.get(name, 1.0)
    if gain >= _LARGE_GAIN:
        option = "eager=false" if record.eager else "jit=true"
        change = _CHANGES[name].format(double=2 * record.per_replica, option=option)
        label = {"batch": "batch size"}.get(name, name)
        return Limit(name, f"{label}: {change} {gain:.2f} times the examples per second")
    return Limit("kernels", f"nothing but the work itself: {_work(record)}")


def _work(record: BenchmarkRecord) -> str:
    total = sum(record.kernels.values())
    if not total:
        return f"steps wait for nothing in {_percent(_busy(record))} of the time"
    name, secs = next(iter(record.kernels.items()))
    return f"{_percent(secs / total)} of the time of all kernels is {name}"


def _busy(record: BenchmarkRecord) -> float:
    return 1.0 - max(record.largest.input_wait, record.largest.communication)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
