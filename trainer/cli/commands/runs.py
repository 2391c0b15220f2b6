"""The command `runs [folder]`: lists the runs in a folder with their status. No TensorFlow."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cli.commands.command_arguments import Parser, is_run, runs_in
from trainer.config.directions import Directions
from trainer.config.options.constraints import did_you_mean
from trainer.errors import DONE, ConfigError
from trainer.runs import provenance, recorded_metrics
from trainer.runs.ledger import Ledger, format_sizes
from trainer.runs.status import RunStatus, run_status
from trainer.text import align_columns, format_metric

_HEAD = ("run", "state", "step", "metric", "age", "why")
_ALIGN = "<<><><"
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class _Run:
    """A run: when it was last written (Unix time), and its numbers of workers, each from a step."""

    path: Path
    outcome: RunStatus
    total: int | None
    active: float
    sizes: Sequence[tuple[int, int]]
    directions: Directions


def run(arguments: Sequence[str]) -> int:
    """Print the runs of a folder, sorted by their last activity or by a metric.

    Raises:
        ConfigError: there is no such folder, or no run has the metric.
    """
    parser = Parser("runs", "exit code: 0, also if runs have failed")
    parser.add_argument(
        "folder",
        nargs="?",
        default="runs",
        help="where the run directories are; runs, unless another is named",
    )
    parser.add_argument(
        "--sort",
        metavar="METRIC",
        help="the best first by this metric of the evaluations, instead of the newest",
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs: all metrics in full precision"
    )
    args = parser.parse_args(arguments)
    folder = Path(args.folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"runs ({args.folder}): no such directory; "
            "write runs <folder>, with the folder where run directories are"
        )
    listed = [_read(path) for path in ([folder] if is_run(folder) else runs_in(folder))]
    listed = (
        _by_metric(listed, args.sort)
        if args.sort
        else sorted(listed, key=lambda run: (-run.active, run.path))
    )
    if args.json:
        print(json.dumps([_plain(run) for run in listed], indent=1))
    elif not listed:
        print(f"{folder} has no run yet.")
    else:
        print(*align_columns([_HEAD, *(_row(run, args.sort) for run in listed)], _ALIGN), sep="\n")
    return DONE


def _read(path: Path) -> _Run:
    sizes = Ledger(path, writes=False).summary().sizes
    directions = recorded_metrics.read_directions(path)
    return _Run(path, run_status(path), total_steps(path), _last_write(path), sizes, directions)


def total_steps(path: Path) -> int | None:
    """Return the number of steps of a run; None: not known yet, or run.json is damaged."""
    try:
        total: int | None = provenance.read(path).get("total_steps")
    except ConfigError:
        return None
    return total


def _last_write(path: Path) -> float:
    """Return when a file of a run was last written; a file, or all, may vanish meanwhile."""
    times = [0.0]
    with suppress(FileNotFoundError):
        for file in (*path.iterdir(), path / "checkpoints"):
            with suppress(FileNotFoundError):
                times.append(file.stat().st_mtime)
    return max(times)


def _by_metric(runs: Sequence[_Run], metric: str) -> list[_Run]:
    """Return the runs, the best first, those without the metric last."""
    names = {name for run in runs for name in run.outcome.metrics}
    if metric not in names:
        choices = f"; choose one of {', '.join(sorted(names))}" if names else ""
        hint = did_you_mean(metric, names) or choices
        raise ConfigError(f"--sort ({metric}): no run has this metric{hint}")
    modes = [run.directions.mode(metric) for run in runs if metric in run.outcome.metrics]
    mode = next((mode for mode in modes if mode), None)
    if mode is None:
        raise ConfigError(
            f"--sort ({metric}): no run tells whether larger or smaller is better; add "
            f'direction = {{"{metric}": "max"}} to the class that returns it, or sort by another'
        )
    sign = 1 if mode == "min" else -1

    def rank(run: _Run) -> tuple[float, Path]:
        value = run.outcome.metrics.get(metric, math.nan)
        return math.inf if math.isnan(value) else sign * value, run.path

    return sorted(runs, key=rank)


def _row(run: _Run, metric: str | None) -> Sequence[str]:
    metrics = run.outcome.metrics
    step = str(run.outcome.step)
    name = metric or run.directions.primary
    name = name if name in metrics or metric else "loss"
    test = run.outcome.test
    in_test = f" (test {format_metric(test[name])})" if name in test else ""
    return (
        run.path.name,
        run.outcome.state,
        f"{step}/{run.total}" if run.total else step,
        f"{name} {format_metric(metrics[name])}{in_test}" if name in metrics else "-",
        age(time.time() - run.active),
        run.outcome.error or (f"workers: {sizes}" if (sizes := format_sizes(run.sizes)) else ""),
    )


def _plain(run: _Run) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "run": str(run.path),
        "state": outcome.state,
        "step": outcome.step,
        "total_steps": run.total,
        "metrics": dict(outcome.metrics),
        "split": outcome.split,
        "test": dict(outcome.test),
        "active": round(run.active, 3),
        "workers": run.sizes,
        "why": outcome.error,
    }


def age(secs: float) -> str:
    """Return an age in its largest unit: 12 s, 5 min, 3 h, 4 d."""
    unit, size = next(((unit, size) for unit, size in _UNITS if secs >= size), _UNITS[-1])
    return f"{max(0.0, secs) / size:.0f} {unit}"
