"""The command `runs [folder]`: lists the runs in a folder with their status. No TensorFlow."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import DEFAULT_FOLDER, runs_at
from trainer.cli.terminal import Terminal
from trainer.config.directions import rank
from trainer.errors import DONE, ConfigError
from trainer.runs import run_summary
from trainer.runs.ledger import format_sizes
from trainer.runs.run_summary import RunSummary
from trainer.text import did_you_mean, format_duration, format_metric

_COLUMNS = {
    "run": "<", "what differs": "<", "state": "<", "best": "<", "step": ">", "test": ">",
    "time": ">", "left": ">", "age": ">",
}  # fmt: skip
"""The titles of the columns, and how each is aligned."""
_FEWEST = 3
"""The columns that a narrow terminal shows too."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def run(arguments: Sequence[str]) -> int:
    """Print the runs of a folder, sorted by their last activity or by a metric."""
    parser = Parser("runs", "exit code: 0, also if runs have failed")
    parser.add_argument(
        "folder",
        nargs="?",
        default=str(DEFAULT_FOLDER),
        help="a folder of runs, a run directory, or that of a sweep, runs/sweeps/<name>; "
        f"{DEFAULT_FOLDER}, unless another is named",
    )
    parser.add_argument(
        "--sort",
        metavar="METRIC",
        help="the best first by the newest value of this metric, instead of the newest first",
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs: all metrics in full precision"
    )
    args = parser.parse_args(arguments)
    folder = Path(args.folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"runs: the folder {args.folder} does not exist here; train a run, or write "
            "runs <folder> with the folder of your run directories"
        )
    listed = [run_summary.summarize(path) for path in runs_at("runs", folder)]
    listed = (
        _by_metric(listed, args.sort)
        if args.sort
        else sorted(listed, key=lambda run: (-run.active, run.path))
    )
    differing = run_summary.differences([run.config for run in listed])
    labels = run_summary.labels(differing)
    if args.json:
        entries = [
            {"run": str(run.path), **run.plain(differs, label)}
            for run, differs, label in zip(listed, differing, labels, strict=True)
        ]
        print(json.dumps(entries, indent=1))
    elif not listed:
        print(f"{folder} has no run yet.")
    else:
        terminal = Terminal()
        terminal.show_table(*_table(listed, labels, args.sort), _FEWEST)
        for run in listed:
            sizes = format_sizes(run.sizes)
            if note := run.why or (sizes and f"workers: {sizes}"):
                terminal.show_line(f"{run.path.name}: {note}")
    return DONE


def _by_metric(runs: Sequence[RunSummary], metric: str) -> list[RunSummary]:
    """Return the runs, the best first, those without the metric last."""
    names = {name for run in runs for name in run.metrics}
    if metric not in names:
        choices = f"; choose one of {', '.join(sorted(names))}" if names else ""
        hint = did_you_mean(metric, names) or choices
        raise ConfigError(f"--sort ({metric}): no run has this metric{hint}")
    modes = [run.directions.mode(metric) for run in runs if metric in run.metrics]
    mode = next((mode for mode in modes if mode), None)
    if mode is None:
        raise ConfigError(
            f"--sort ({metric}): no run records whether larger or smaller is better; add "
            f'direction = {{"{metric}": "max"}} to the class that returns it, or sort by another'
        )
    return sorted(runs, key=lambda run: (rank(run.metrics.get(metric, math.nan), mode), run.path))


def _table(
    runs: Sequence[RunSummary], labels: Sequence[str], metric: str | None
) -> tuple[list[Sequence[str]], str]:
    """Return the rows and the alignment of the table, without columns that have no value.

    Args:
        metric: the one that is requested; None: the best value of the primary one.
    """
    names = {metric or run.metric for run in runs}
    name = names.pop() if len(names) == 1 else None
    rows = [
        _row(run, label, metric, with_name=name is None)
        for run, label in zip(runs, labels, strict=True)
    ]
    value_title = " ".join(filter(None, ["" if metric else "best", name])) or "metric"
    columns = [
        ([value_title if title == "best" else title, *(cell or "-" for cell in cells)], side)
        for (title, side), *cells in zip(_COLUMNS.items(), *rows, strict=True)
        if any(cells)
    ]
    table = [*zip(*(cells for cells, _ in columns), strict=True)]
    return table, "".join(side for _, side in columns)


def _row(run: RunSummary, label: str, metric: str | None, *, with_name: bool) -> Sequence[str]:
    """Return the cells of a run; empty: it has no such value."""
    name = metric or run.metric
    prefix = f"{name} " if with_name else ""
    value = f"{prefix}{format_metric(run.metrics[name])}" if name in run.metrics else ""
    if not metric and run.best is not None:
        step, best = run.best
        value = f"{prefix}{format_metric(best)} at {step}"
    return (
        run.path.name,
        label,
        run.state,
        value,
        f"{run.step}/{run.total}" if run.total else str(run.step),
        format_metric(run.test[name]) if name in run.test else "",
        "" if run.secs is None else format_duration(run.secs),
        "" if run.eta_secs is None else format_duration(run.eta_secs),
        age(time.time() - run.active),
    )


def age(secs: float) -> str:
    """Return an age in its largest unit: 12 s, 5 min, 3 h, 4 d."""
    unit, size = next(((unit, size) for unit, size in _UNITS if secs >= size), _UNITS[-1])
    return f"{max(0.0, secs) / size:.0f} {unit}"
