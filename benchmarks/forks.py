"""What forked workers save: `python -m benchmarks.forks --against <checkout> [--rounds N]`.

Everything is run from this checkout and from another, such as one of the commit before, with the
same interpreter, side by side in one run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, first_step_at, interleave, read_ledger, run_child, table

POINTS, STEPS, WORKERS = 20, 50, 4
SHORT = [
    "model=softmax",
    "batch.global_size=128",
    "evaluate.every_epochs=null",
    "checkpoint.every_epochs=null",
]
HERE = "this checkout"
THERE = "the other"


def sweep_secs(checkout: Path) -> float:
    """Return the seconds that a sweep takes."""
    seeds = ",".join(map(str, range(1, POINTS + 1)))
    with tempfile.TemporaryDirectory() as runs:
        command = ["-m", *SHORT, f"train.steps={STEPS}", f"seed={seeds}", f"runs_dir={runs}"]
        child = run_child([sys.executable, "train.py", *command], checkout)
        return time.time() - child.started_at


def first_step_secs(checkout: Path, *strategy: str) -> float:
    """Return the seconds from the launch of a command to the end of its first step."""
    with tempfile.TemporaryDirectory() as runs:
        command = [*SHORT, *strategy, "train.steps=1", f"runs_dir={runs}"]
        child = run_child([sys.executable, "train.py", *command], checkout)
        (run,) = Path(runs).iterdir()
        return first_step_at(read_ledger(run)) - child.started_at


def memory_mib(checkout: Path) -> float:
    """Return the proportional set size of all processes of a command with several workers."""
    with tempfile.TemporaryDirectory() as runs:
        command = [
            *SHORT, "strategy=multi_worker", f"strategy.workers={WORKERS}", "train.steps=1000000",
            "summary.every_steps=10", f"runs_dir={runs}",
        ]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "train.py", *command],
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not list(Path(runs).glob("*/metrics.jsonl")) and process.poll() is None:
                time.sleep(0.05)
            return sum(map(_pss_mib, [process.pid, *_descendants(process.pid)]))
        finally:
            process.terminate()
            process.wait()


def _descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    return children + [pid for child in children for pid in _descendants(child)]


def _pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--against", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    workers = ("strategy=multi_worker", f"strategy.workers={WORKERS}")
    measures = {
        f"a sweep of {POINTS} points of {STEPS} steps": ("s", sweep_secs),
        "the first step of one worker": ("s", first_step_secs),
        f"the first step of {WORKERS} workers": (
            "s",
            lambda checkout: first_step_secs(checkout, *workers),
        ),
        f"memory of {WORKERS} workers, proportional set size": ("MiB", memory_mib),
    }
    for title, (unit, measure) in measures.items():
        contenders = {
            THERE: partial(measure, args.against.resolve()),
            HERE: partial(measure, ROOT),
        }
        print(
            table(title, unit, interleave(contenders, args.rounds), THERE), end="\n\n", flush=True
        )


if __name__ == "__main__":
    main()
