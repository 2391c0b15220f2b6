"""The command `runs [folder]`: what has become of the runs in a folder. No TensorFlow."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer import provenance
from trainer.commands.arguments import Parser, is_run, runs_in
from trainer.errors import ConfigError
from trainer.exitcodes import DONE
from trainer.outcome import Outcome, main_metric, outcome_of, smaller_is_better
from trainer.rules import did_you_mean
from trainer.tables import aligned, number

_HEAD = ("run", "state", "step", "metric", "age", "why")
_ALIGN = "<<><><"
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class _Run:
    """A run.

    Attributes:
        path: its directory.
        outcome: what has become of it.
        total: how many steps were asked for; None: not known yet.
        active: when something was last written, Unix time.
    """

    path: Path
    outcome: Outcome
    total: int | None
    active: float


def run(arguments: Sequence[str]) -> int:
    """Prints the runs of a folder, those first in which something happened last, or by a metric.

    Raises:
        ConfigError: there is no such folder, or no run has the metric.
    """
    parser = Parser("runs", "exit code: 0, whatever has become of them")
    parser.add_argument("folder", nargs="?", default="runs", help="where the run directories are; runs, unless another is named")
    parser.add_argument("--sort", metavar="METRIC", help="the best first by this metric of the test split, instead of the newest")
    parser.add_argument("--json", action="store_true", help="for programs: all metrics in full precision")
    args = parser.parse_args(arguments)
    folder = Path(args.folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"runs ({args.folder}): no such directory; write runs <folder>, with the folder where run directories are")
    found = [_look(path) for path in ([folder] if is_run(folder) else runs_in(folder))]
    found = _by_metric(found, args.sort) if args.sort else sorted(found, key=lambda run: (-run.active, run.path))
    if args.json:
        print(json.dumps([_plain(run) for run in found], indent=1))
    elif not found:
        print(f"{folder} has no run yet.")
    else:
        print(*aligned([_HEAD, *(_row(run, args.sort) for run in found)], _ALIGN), sep="\n")
    return DONE


def _look(path: Path) -> _Run:
    try:
        total = provenance.read(path).get("total_steps")
    except ConfigError:  # it is damaged; what else is known is told
        total = None
    times = [file.stat().st_mtime for file in (*path.iterdir(), path / "checkpoints") if file.exists()]
    return _Run(path, outcome_of(path), total, max(times))


def _by_metric(runs: Sequence[_Run], metric: str) -> list[_Run]:
    known = {name for run in runs for name in run.outcome.metrics}
    if metric not in known:
        hint = did_you_mean(metric, known) or (f"; choose one of {', '.join(sorted(known))}" if known else "")
        raise ConfigError(f"--sort ({metric}): no run has this metric{hint}")

    def rank(run: _Run) -> tuple[float, Path]:
        value = run.outcome.metrics.get(metric, math.nan)
        return math.inf if math.isnan(value) else value if smaller_is_better(metric) else -value, run.path

    return sorted(runs, key=rank)


def _row(run: _Run, metric: str | None) -> Sequence[str]:
    metrics, step = run.outcome.metrics, str(run.outcome.step)
    name = metric or main_metric(metrics)
    return (
        run.path.name,
        run.outcome.state,
        f"{step}/{run.total}" if run.total else step,
        f"{name} {number(metrics[name])}" if name in metrics else "-",
        age(time.time() - run.active),
        run.outcome.why,
    )


def _plain(run: _Run) -> dict[str, Any]:
    outcome = run.outcome
    told = {"state": outcome.state, "step": outcome.step, "total_steps": run.total, "metrics": dict(outcome.metrics)}
    return {"run": str(run.path), **told, "active": round(run.active, 3), "why": outcome.why}


def age(secs: float) -> str:
    """Words an age in its largest unit: 12 s, 5 min, 3 h, 4 d."""
    unit, size = next(((unit, size) for unit, size in _UNITS if secs >= size), _UNITS[-1])
    return f"{max(0.0, secs) / size:.0f} {unit}"
