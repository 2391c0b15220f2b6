"""Cost and result of searches: `python -m benchmarks.search [--epochs N] [--contenders NAME ...]`.

All train points of one grid of 27, two at a time, with one core each. A search is compared with the
whole grid: steps and seconds, and the accuracy that its choice has there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import run_child, write_records

GRID = {
    "optimizer.learning_rate": ("0.01", "0.03", "0.1"),
    "optimizer.momentum": ("0.0", "0.5", "0.9"),
    "model.dropout": ("0.0", "0.25", "0.5"),
}
BATCH_SIZE = 32
VALIDATION = 0.2
REDUCTION = 3
SMALLEST_FRACTION = 27
"""The shortest training has this part of the epochs of the longest."""
STEADFAST = ("grid", "asha", "halving", "hyperband")
PEERS = {"ray": "Ray Tune, ASHAScheduler", "optuna": "Optuna, HyperbandPruner"}
SEEDS = (1, 2)
"""In addition to 0, of the best point of the grid."""


@dataclass(frozen=True)
class Result:
    """What a contender has trained and found.

    Attributes:
        steps: of all points together.
        secs: from the launch of the command to its end.
        best: the values of the best point, in the order of `GRID`.
        accuracy: that of the best point on the validation split, as the contender trained it.
    """

    steps: int
    secs: float
    best: Sequence[str]
    accuracy: float


def run_steadfast(epochs: int, *overrides: str) -> tuple[Result, list[dict[str, Any]]]:
    """Run a sweep in a new folder; return also its points, the best first."""
    with tempfile.TemporaryDirectory() as runs:
        shared = [
            f"runs_dir={runs}",
            "model=cnn",
            "dataset=digits",
            f"dataset.validation={VALIDATION}",
            "optimizer=sgd",
            f"batch.global_size={BATCH_SIZE}",
            f"train.epochs={epochs}",
            "sweep.jobs=2",
            "sweep.name=search",
        ]
        began = time.monotonic()
        run_child([sys.executable, "train.py", "-m", *shared, *overrides])
        secs = time.monotonic() - began
        summary = json.loads((Path(runs) / "sweeps" / "search" / "summary.json").read_text())
    points = summary["points"]
    steps = sum(point["step"] for point in points)
    return Result(steps, secs, *_choice(points[0])), points


def _choice(point: Mapping[str, Any]) -> tuple[list[str], float]:
    return [point["varied"].get(key, "") for key in GRID], point["metrics"]["accuracy"]


def run_search(name: str, epochs: int) -> tuple[Result, list[dict[str, Any]]]:
    """Run a search of Steadfast over the grid."""
    ranges = [f"{key}={','.join(values)}" for key, values in GRID.items()]
    budgets = f"search.min_epochs={epochs / SMALLEST_FRACTION}"
    options = [budgets, f"search.reduction={REDUCTION}"] if name != "grid" else []
    return run_steadfast(epochs, *ranges, f"search={name}", *options)


def run_peer(name: str, epochs: int) -> Result:
    """Run a program of `benchmarks.search_peers`."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.search_peers", name, "--epochs", str(epochs)]
    # Ray's default of 15 would give way to all other programs of the machine.
    child = run_child(command, {"TF_NUM_INTRAOP_THREADS": "1", "RAY_worker_niceness": "0"})
    secs = time.monotonic() - began
    report = json.loads([line for line in child.output.splitlines() if line.startswith("{")][-1])
    return Result(secs=secs, **report)


def accuracies_of_seeds(best: Result, epochs: int) -> list[float]:
    """Return the accuracy of a point with each seed."""
    values = [f"{key}={value}" for key, value in zip(GRID, best.best, strict=True)]
    _, points = run_steadfast(epochs, *values, f"seed={','.join(map(str, SEEDS))}")
    return [best.accuracy, *(point["metrics"]["accuracy"] for point in points)]


def table(
    results: Mapping[str, Result], grid: Mapping[tuple[str, ...], float], seeds: Sequence[float]
) -> str:
    """Format what each search has cost, and found, next to the grid."""
    whole = results["grid"]
    lines = [
        f"Grid's best point: {' '.join(whole.best)}; accuracy by seed "
        f"{', '.join(f'{value:.4f}' for value in seeds)}; range {max(seeds) - min(seeds):.4f}, "
        f"standard deviation {statistics.stdev(seeds):.4f}",
        "",
        "| | steps | of the grid | seconds | of the grid | best accuracy | its point in the grid |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in results.items():
        lines.append(
            f"| {PEERS.get(name, name)} | {result.steps:,} | {result.steps / whole.steps:.2f} "
            f"| {result.secs:.0f} | {result.secs / whole.secs:.2f} | {result.accuracy:.4f} "
            f"| {grid[tuple(result.best)]:.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--epochs", type=int, default=27, help="of the longest trainings")
    names = (*STEADFAST[1:], *PEERS)
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path, help="a JSON file of records, such as results.json")
    args = parser.parse_args()
    results: dict[str, Result] = {}
    results["grid"], points = run_search("grid", args.epochs)
    print(results["grid"], file=sys.stderr, flush=True)
    for name in args.contenders:
        is_peer = name in PEERS
        results[name] = run_peer(name, args.epochs) if is_peer else run_search(name, args.epochs)[0]
        print(name, results[name], file=sys.stderr, flush=True)
    seeds = accuracies_of_seeds(results["grid"], args.epochs)
    grid = {tuple(values): accuracy for values, accuracy in map(_choice, points)}
    print(table(results, grid, seeds))
    if args.out:
        rows = [
            {
                "contender": name,
                **asdict(result),
                "secs": round(result.secs, 1),
                "in_grid": grid[tuple(result.best)],
            }
            for name, result in results.items()
        ]
        write_records(args.out, {"search": {"seeds": seeds, "contenders": rows}})


if __name__ == "__main__":
    main()
