"""Useful time while processes are killed: `python -m benchmarks.fire [--every SECS ...] [--quick]`.

Every contender trains the same network on the same images, for as many steps: undisturbed, and
while one of its processes, chosen at random, gets a SIGKILL every so many seconds (give or take
a half, the same times for all). All contenders save at the same steps, but for one that saves
as its documentation shows. The table goes to standard output, the numbers to a file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fire.burning import burn, kill_times
from benchmarks.fire.contenders import ALONE, CONTENDERS, outcomes
from benchmarks.fire.job import Job, replay
from benchmarks.harness import data_file, installed, write_records
from tests.support.processes import final_variables, only_run

SAVE_EVERY = 50
BATCH_SIZE = 64
SIZES = {1: (8, 300), 2: (3, 300)}
QUICK_SIZES = {1: (2, 50), 2: (2, 50)}
"""Processes -> epochs, and steps in one."""
LIMIT = 5
"""How many times as long as undisturbed a run may take."""


def run_each(
    name: str,
    processes: int,
    size: tuple[int, int],
    data: Path,
    every: Sequence[float | None],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Run a contender once for each of `every`, seconds between two kills; yield the results.

    None: undisturbed, which the first run must be: the others are compared with it.
    """
    contender = CONTENDERS[name]
    calm_secs, calm_weights = None, None
    for secs in every:
        with tempfile.TemporaryDirectory(prefix="fire-") as folder:
            save_every = None if contender.every_epoch else SAVE_EVERY
            job = Job(folder, str(data), *size, BATCH_SIZE, save_every)
            limit = LIMIT * calm_secs if calm_secs else 1800.0
            ran_secs, is_complete, kills = burn(
                contender, job, processes, kill_times(secs, seed), limit
            )
            computed, misplaced = replay(job, processes)
            weights = final_weights(job) if is_complete else None
        calm_secs, calm_weights = calm_secs or ran_secs, calm_weights or weights
        row = {
            "seed": seed,
            "contender": name,
            "processes": processes,
            "kill_every_secs": secs,
            "kills": kills,
            "secs": round(ran_secs, 2),
            "is_complete": is_complete,
            "steps": job.steps,
            "computed_steps": computed,
            "examples": job.steps * job.batch_size,
            "misplaced_examples": misplaced if is_complete else None,
            "largest_difference": difference(calm_weights, weights)
            if calm_weights and weights
            else None,
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row


def final_weights(job: Job) -> list[np.ndarray]:
    """Return the weights that a contender has ended with."""
    if (file := Path(job.folder, "weights.npz")).exists():
        with np.load(file) as archive:
            return [archive[name] for name in archive]
    variables = final_variables(only_run(Path(job.folder)))
    return [variables[name] for name in sorted(variables) if name.startswith("models/")]


def difference(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Return the largest difference of the weights of two runs."""
    return max(float(abs(first - second).max()) for first, second in zip(one, other, strict=True))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the outcomes in Markdown."""
    head = (
        "| processes | contender | saves | a kill every | useful time | recomputed steps "
        "| examples missed | largest difference of a weight |"
    )
    lines = [head, "| ---: | --- | --- |" + " ---: |" * 5]
    for outcome in outcomes(rows):
        contender, every = CONTENDERS[outcome["contender"]], outcome["every"]
        end = ["does not end", "", "", ""]
        if any(outcome["useful"]):
            useful = ", ".join(f"{100 * share:.0f} %" for share in outcome["useful"])
            wrong = f"{100 * outcome['misplaced']:.1f} %"
            end = [useful, outcome["recomputed"], wrong, f"{outcome['difference']:.2g}"]
        kills = f"{every:g} s" if every else "never"
        cells = [outcome["processes"], contender.title, contender.setting, kills, *end]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


@contextmanager
def images(path: Path | None, count: int) -> Iterator[Path]:
    """Yield an .npz file of the first images of MNIST, or of what is at hand in its place."""
    with data_file(path) as file, tempfile.TemporaryDirectory() as folder:
        with np.load(file) as archive:
            sizes = {"train": count, "test": BATCH_SIZE}
            arrays = {
                f"{kind}_{split}": archive[f"{kind}_{split}"][:size]
                for split, size in sizes.items()
                for kind in "xy"
            }
        part = Path(folder, "images.npz")
        np.savez(part, **arrays)
        yield part


def main() -> None:
    args = arguments()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends, too
    rows: list[dict[str, Any]] = []
    for processes, size in (QUICK_SIZES if args.quick else SIZES).items():
        names = args.contenders if processes in args.processes else []
        with images(args.data, size[1] * BATCH_SIZE) as data:
            for seed, name in itertools.product(range(args.rounds), names):
                if not installed(name):
                    print(f"{name} is not installed: see README.md", file=sys.stderr)
                elif processes == 1 or name not in ALONE:
                    rows += run_each(name, processes, size, data, (None, *args.every), seed)
    print(table(rows))
    if args.out:
        write_records(args.out, {"fire": rows})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fire", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--every", type=float, nargs="+", default=[20, 8], help="mean seconds between two kills"
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], choices=SIZES)
    parser.add_argument("--contenders", nargs="+", default=[*CONTENDERS], choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3, help="each kills at other times")
    parser.add_argument("--quick", action="store_true", help="fewer steps, for a smoke test")
    parser.add_argument("--out", type=Path, help="a JSON file of records, such as results.json")
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
