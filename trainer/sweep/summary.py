"""The summary of a sweep: one table, as text and JSON.

It is the same to the byte for the same runs, however often the sweep was interrupted.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cli.terminal import Terminal
from trainer.config import addresses
from trainer.config.schema import Experiment, Sweep
from trainer.errors import ConfigError
from trainer.files import Lock, LockedError, finite_only, write_atomically, writing
from trainer.runs import identity
from trainer.runs.directory import SWEEP_SUMMARY
from trainer.runs.status import State
from trainer.sweep.points import Point, PointResult
from trainer.sweep.search import Goal
from trainer.text import format_metric, short_keys

_LOCK_WAIT_SECS = 5.0  # the children of a killed command may hold the lock for a moment longer
_MAX_NAME_CHARS = 48


def summary_folder(experiment: Experiment, keys: Collection[str], overrides: Iterable[str]) -> Path:
    """Return the folder of a sweep's summary, which need not exist.

    It is the same after values were added, and for other values of keys such as sweep.jobs that do
    not change a run.

    Args:
        overrides: all overrides of the sweep; those of varied keys are ignored.
    """
    runs_dir = experiment.runs_dir
    if addresses.is_remote(runs_dir):
        runs = addresses.work_folder(experiment.store.work_dir, runs_dir)
    else:
        runs = Path(runs_dir).expanduser()
    parent = runs / "sweeps"
    if experiment.sweep.name:
        return parent / experiment.sweep.name
    varied = sorted(key.lstrip("+") for key in keys)
    values = identity.leaves(experiment)
    shared = sorted(
        override.lstrip("+")
        for override in overrides
        if _identifies_sweep(override, varied, values)
    )
    digest = hashlib.sha256(json.dumps([varied, shared]).encode()).hexdigest()[:8]
    words = [re.sub(r"[^\w-]", "_", key.rpartition(".")[2]) for key in varied]
    return parent / f"{'-'.join(words)[:_MAX_NAME_CHARS] or 'single'}-{digest}"


def _identifies_sweep(override: str, varied: Collection[str], values: Mapping[str, Any]) -> bool:
    """Return whether an override belongs to all points and changes their runs."""
    key = override.lstrip("+~").partition("=")[0]
    if key in varied or key.startswith(("hydra.", "hydra/")):
        return False
    try:
        return identity.names_run(key, values)
    except LookupError:
        return True  # a group such as `experiment`, which may set any key


def lock_folder(folder: Path) -> Lock:
    """Lock the folder of a sweep: two commands would take each other's points for abandoned."""
    try:
        with writing(path := folder / ".lock"):
            return Lock.acquire(path, _LOCK_WAIT_SECS)
    except LockedError:
        raise ConfigError(f"{folder}: the same sweep is running; wait for it, or stop it") from None


def write_summary(folder: Path, sweep: Sweep, results: Sequence[PointResult]) -> None:
    """Write summary.txt and summary.json."""
    results = sort_results(sweep, results)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    show_summary(Terminal(text), sweep, results)
    write_atomically(folder / "summary.txt", text.getvalue())
    write_atomically(folder / SWEEP_SUMMARY, _json(sweep, results))


def varied_keys(points: Iterable[Point]) -> list[str]:
    """Return the keys that points vary, in order of appearance."""
    return list(dict.fromkeys(key for point in points for key in point.shown))


def count_states(states: Iterable[State]) -> str:
    """Return the number of points in each state: `6 points: 4 done, 1 failed, 1 waiting`."""
    counts = Counter(states)
    parts = ", ".join(f"{counts[state]} {state}" for state in reversed(State) if counts[state])
    return f"{counts.total()} point{'s' if counts.total() != 1 else ''}: {parts or 'none'}"


def sort_results(sweep: Sweep, results: Sequence[PointResult]) -> list[PointResult]:
    """Return the results, the best first, those without the metric last.

    With several metrics the Pareto front comes first; the first metric sorts it, and the others.
    """
    front = _pareto_front(sweep, results)
    return sorted(
        results,
        key=lambda result: (
            result.point.number not in front,
            _ranks(sweep, result),
            result.point.number,
        ),
    )


def _ranks(sweep: Sweep, result: PointResult) -> list[float]:
    return [goal.rank(result.outcome.metrics) for goal in Goal.all_of(sweep)]


def _pareto_front(sweep: Sweep, results: Sequence[PointResult]) -> set[int]:
    """Return the numbers of the points that no other beats: as good in all metrics, better in one.

    A point without one of the metrics is not among them.
    """
    front: dict[int, list[float]] = {}
    ranked = [(_ranks(sweep, result), result.point.number) for result in results]
    for ranks, number in sorted(ranked):  # what beats a point comes before it
        is_beaten = any(
            other != ranks and all(map(operator.le, other, ranks)) for other in front.values()
        )
        if not is_beaten and math.inf not in ranks:
            front[number] = ranks
    return {*front}


def show_summary(terminal: Terminal, sweep: Sweep, results: Sequence[PointResult]) -> None:
    """Show the summary as text; see `write_summary`."""
    results = sort_results(sweep, results)
    front = _pareto_front(sweep, results)
    metrics = [goal.metric for goal in Goal.all_of(sweep)]
    keys = varied_keys(result.point for result in results)
    # Metrics of single classes, such as recall/cat, would make the table too wide.
    known = _metric_names(results)
    names = [name for name in metrics if name in known]
    names += [name for name in known if name not in metrics and "/" not in name]
    tested = metrics if any(result.outcome.test for result in results) else []
    has_front = len(metrics) > 1
    has_origin = any(result.point.origin for result in results)

    def cells(result: PointResult) -> list[str]:
        point = result.point
        outcome = result.outcome
        return [
            *(point.shown.get(key, "-") for key in keys),
            *([point.origin or "-"] * has_origin),
            *(["yes" if point.number in front else "-"] * has_front),
            outcome.state,
            str(outcome.step),
            *(_cell(outcome.metrics, name) for name in names),
            *(_cell(outcome.test, name) for name in tested),
            point.place,
        ]

    states = count_states(result.outcome.state for result in results)
    header = [
        *short_keys(keys),
        *["from"] * has_origin,
        *["pareto"] * has_front,
        "state",
        "step",
        *names,
        *(f"test {name}" for name in tested),
        "run",
    ]
    left, right = len(keys) + has_origin + has_front + 1, 1 + len(names) + len(tested)
    alignment = "<" * left + ">" * right + "<"
    best = f"Pareto front of {', '.join(metrics)}" if has_front else f"best {metrics[0]}"
    terminal.show_line(f"{states}; the {best} first:")
    terminal.show_table([header, *map(cells, results)], alignment, fewest=2)
    for result in results:
        if result.outcome.error:
            terminal.show_line(f"{result.point.label}: {result.outcome.error}")


def _cell(metrics: Mapping[str, float], name: str) -> str:
    return format_metric(metrics[name]) if name in metrics else "-"


def _json(sweep: Sweep, results: Sequence[PointResult]) -> str:
    goals = Goal.all_of(sweep)
    front = _pareto_front(sweep, results)
    points = [
        {
            "varied": dict(result.point.shown),
            **({"from": result.point.origin} if result.point.origin else {}),
            **({"pareto": result.point.number in front} if len(goals) > 1 else {}),
            "state": result.outcome.state,
            "step": result.outcome.step,
            "metrics": finite_only(result.outcome.metrics),
            **({"test": finite_only(result.outcome.test)} if result.outcome.test else {}),
            "run": result.point.place,
            "why": result.outcome.error,
        }
        for result in results
    ]
    metric: Any = [goal.metric for goal in goals]
    mode: Any = [goal.mode for goal in goals]
    if len(goals) == 1:
        (metric,), (mode,) = metric, mode
    return json.dumps({"metric": metric, "mode": mode, "points": points}, indent=1) + "\n"


def _metric_names(results: Sequence[PointResult]) -> list[str]:
    return sorted({name for result in results for name in result.outcome.metrics})
