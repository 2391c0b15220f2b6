"""What a sweep has come to: one table, as text, CSV and JSON. No TensorFlow.

It holds nothing that depends on when and how often the sweep was interrupted: the same runs give the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from trainer import identity
from trainer.files import write_atomically, writing
from trainer.outcome import Outcome, State, main_metric, smaller_is_better
from trainer.schema import Experiment, Sweep
from trainer.sweep.points import Point
from trainer.tables import aligned, number

Rows: TypeAlias = Sequence[tuple[Point, Outcome]]

_MAX_NAME = 48


def folder_of(experiment: Experiment, keys: Collection[str], overrides: Iterable[str]) -> Path:
    """Gives the folder of a sweep's summary, which need not exist.

    It stays the same when values are added to what is varied, and when what names no run changes, such as sweep.jobs.

    Args:
        experiment: any point, or what they share.
        keys: what is varied, as on the command line.
        overrides: those that all points share; the others may be among them.
    """
    parent = Path(experiment.runs_dir).expanduser() / "sweeps"
    if experiment.sweep.name:
        return parent / experiment.sweep.name
    varied = sorted(key.lstrip("+") for key in keys)
    shared = sorted(item.lstrip("+") for item in overrides if _names_sweep(item, varied))
    digest = hashlib.sha256(json.dumps([varied, shared]).encode()).hexdigest()[:8]
    words = [re.sub(r"[^\w-]", "_", key.rpartition(".")[2]) for key in varied]
    return parent / f"{'-'.join(words)[:_MAX_NAME] or 'single'}-{digest}"


def write(folder: Path, sweep: Sweep, rows: Rows) -> str:
    """Writes summary.txt, summary.csv and summary.json.

    Args:
        folder: where to; it is made.
        sweep: tells by which metric to sort.
        rows: each point with what it came to, in any order.

    Returns:
        The table that people read, as in summary.txt.

    Raises:
        StorageError: one cannot be written.
    """
    metric = sweep.metric or main_metric({name for _, outcome in rows for name in outcome.metrics})
    smaller = smaller_is_better(metric, sweep.mode)
    rows = _ranked(rows, metric, smaller)
    text = _text(rows, metric)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "summary.txt", text)
    write_atomically(folder / "summary.csv", _csv(rows))
    write_atomically(folder / "summary.json", _json(rows, metric, smaller))
    return text


def _names_sweep(item: str, varied: Collection[str]) -> bool:
    """Whether an override that is not varied makes another sweep: it makes other runs."""
    key = item.lstrip("+~").partition("=")[0]
    if key in varied or key.startswith(("hydra.", "hydra/")):
        return False
    try:
        return identity.names_run(key)
    except LookupError:
        return True  # a recipe, which may set anything


def _ranked(rows: Rows, metric: str, smaller: bool) -> Rows:
    """Sorts the best first; those without the metric come last; those that are equal in the order of their numbers."""

    def rank(row: tuple[Point, Outcome]) -> tuple[float, int]:
        value = row[1].metrics.get(metric, math.nan)
        return math.inf if math.isnan(value) else value if smaller else -value, row[0].number

    return sorted(rows, key=rank)


def _text(rows: Rows, metric: str) -> str:
    keys = varied_keys(point for point, _ in rows)
    metrics = sorted((name for name in _metrics(rows) if name == metric or "/" not in name), key=lambda name: name != metric)
    cells = [
        [
            *(point.varied.get(key, "-") for key in keys),
            outcome.state,
            str(outcome.step),
            *(number(outcome.metrics[name]) if name in outcome.metrics else "-" for name in metrics),
            str(point.path),
        ]
        for point, outcome in rows
    ]
    lines = [
        f"{counted(outcome.state for _, outcome in rows)}; the best {metric} first:",
        *aligned([[*short(keys), "state", "step", *metrics, "run"], *cells], "<" * (len(keys) + 1) + ">" * (len(metrics) + 1) + "<"),
        *(f"{point.label}: {outcome.why}" for point, outcome in rows if outcome.why),
    ]
    return "".join(f"{line}\n" for line in lines)


def varied_keys(points: Iterable[Point]) -> list[str]:
    """Gives what points vary, in their order."""
    return list(dict.fromkeys(key for point in points for key in point.varied))


def short(keys: Sequence[str]) -> list[str]:
    """Names keys by their last parts where no other has the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]


def counted(states: Iterable[State]) -> str:
    """Words how many points are in each state: `6 points: 4 done, 1 failed, 1 waiting`."""
    counts = Counter(states)
    told = ", ".join(f"{counts[state]} {state}" for state in reversed(State) if counts[state])
    return f"{counts.total()} point{'s' if counts.total() != 1 else ''}: {told or 'none'}"


def _csv(rows: Rows) -> str:
    keys, metrics, out = varied_keys(point for point, _ in rows), _metrics(rows), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keys, "state", "step", *metrics, "run", "why"])
    for point, outcome in rows:
        values = [outcome.metrics.get(name, "") for name in metrics]
        writer.writerow([*(point.varied.get(key, "") for key in keys), outcome.state, outcome.step, *values, point.path, outcome.why])
    return out.getvalue()


def _json(rows: Rows, metric: str, smaller: bool) -> str:
    points = [
        {
            "varied": dict(point.varied),
            "state": outcome.state,
            "step": outcome.step,
            # JSON has no word for what is no number.
            "metrics": {name: value if math.isfinite(value) else None for name, value in outcome.metrics.items()},
            "run": str(point.path),
            "why": outcome.why,
        }
        for point, outcome in rows
    ]
    return json.dumps({"metric": metric, "mode": "min" if smaller else "max", "points": points}, indent=1) + "\n"


def _metrics(rows: Rows) -> list[str]:
    return sorted({name for _, outcome in rows for name in outcome.metrics})
