"""What the page shows of a search: what its log says of rungs and of how points continued."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config.directions import rank
from trainer.errors import DamagedError
from trainer.runs.secret_masking import shown
from trainer.sweep.study import FILE, Study, Trial, read_study
from trainer.text import format_metric


def searches_of(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the data of each folder that has the log of a search."""
    return [data for folder in folders if (data := search_data(folder))]


def search_data(folder: Path) -> dict[str, Any] | None:
    """Return the rungs and points of a search, or None if the folder has no log of one.

    `problem` says why a log cannot be read.
    """
    try:
        found = read_study(folder)
        return None if found is None else _data(*found)
    except DamagedError as error:
        return {"problem": str(error)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return {"problem": f"{folder / FILE} is not the log of a search: {error!r}"}


def _data(study: Study, definition: Mapping[str, Any]) -> dict[str, Any]:
    mode, _, metric = definition["goal"].partition(",")[0].partition(" ")
    rungs = _rungs(study, metric, mode)
    has_branches = any(_origin(trial) for trial in study.trials.values())
    return {
        "unit": str(definition.get("unit", "budget")),
        "metric": metric,
        "rungs": rungs if len(rungs) > 1 else [],
        "points": list(_points(study, metric)) if len(rungs) > 1 or has_branches else [],
    }


def _rungs(study: Study, metric: str, mode: str) -> list[list[str]]:
    """Return for each budget how many points used it and continued, the best, and its value."""
    trials = list(study.trials.values())
    budgets = {stint.until for trial in trials for stint in trial.stints}
    lines = []
    for until in sorted(budgets, key=lambda budget: math.inf if budget is None else budget):
        ended = [
            (rank(stint.outcome.metrics.get(metric, math.nan), mode), trial, stint.outcome)
            for trial in trials
            if (stint := trial.at(until)) and stint.outcome
        ]
        continued = sum(trial.stints[-1].until != until for _, trial, _ in ended)
        name = "the end" if until is None else f"{until:g}"
        line = [name, str(len(ended)), str(continued), "", ""]
        if ended:
            _, trial, outcome = min(ended, key=lambda item: (item[0], item[1].number))
            if metric in outcome.metrics:
                line[3:] = [_label(trial), format_metric(outcome.metrics[metric])]
        lines.append(line)
    return lines


def _origin(trial: Trial) -> Sequence[int] | None:
    state = trial.state
    return state.get("origin") if isinstance(state, Mapping) else None


def _points(study: Study, metric: str) -> Iterator[dict[str, Any]]:
    """Yield each point with a value of the metric: [step, value] where it paused or ended.

    `origin` is the same of the point from which it branches off, if it does.
    """
    ends = {number: _ends(trial, metric) for number, trial in study.trials.items()}
    for number, trial in study.trials.items():
        label = f"point {number}: {_label(trial)}"
        origin = None
        if branch := _origin(trial):
            source, step = branch
            label += f", from point {source} at step {step}"
            origin = next((end for end in ends[source] if end[0] == step), None)
        if ends[number]:
            yield {"label": label, "origin": origin, "ends": ends[number]}


def _ends(trial: Trial, metric: str) -> list[tuple[int, float]]:
    """Return step and value at each pause and at the end, or at the newest evaluation."""
    outcomes = [stint.outcome for stint in trial.stints if stint.outcome]
    found = {outcome.step: outcome.metrics for outcome in outcomes}
    if not trial.outcome:
        found.update(list(trial.evaluations.items())[-1:])
    values = {step: metrics.get(metric, math.nan) for step, metrics in found.items()}
    return [(step, value) for step, value in values.items() if math.isfinite(value)]


def _label(trial: Trial) -> str:
    values: Mapping[str, str] = shown(dict(trial.values))
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
