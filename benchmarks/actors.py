"""Frames per second against the number of actors: `python -m benchmarks.actors [--rounds N]`.

The learner trains a small network on CartPole; the environments and the policy are nearly all the
work, until the actors have no core left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import interleave, run_child, table

LENGTH = 20
STEPS, FIRST = 600, 200
"""Steps of a run, and those before the first one that is measured."""


def frames_per_sec(actors: int, environments: int) -> float:
    """Return the frames that are trained on in a second, the median over the run."""
    with tempfile.TemporaryDirectory() as runs:
        run_child(
            [
                sys.executable, "train.py", "experiment=impala_cartpole", f"runs_dir={runs}",
                f"train.steps={STEPS}", f"task.unroll_length={LENGTH}", f"actors.count={actors}",
                f"actors.environments={environments}", "evaluate.every_steps=null",
                "checkpoint.every_steps=null", "summary.every_steps=100", "writers=[jsonl]",
            ]
        )  # fmt: skip
        (log,) = Path(runs).glob("*/metrics.jsonl")
        lines = map(json.loads, log.read_text().splitlines())
        return LENGTH * statistics.median(
            line["examples_per_sec"]
            for line in lines
            if line["split"] == "train" and line["step"] > FIRST
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.actors", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--environments", type=int, nargs="+", default=[4, 16])
    args = parser.parse_args()
    contenders = {
        f"{count} actors of {size} environments": partial(frames_per_sec, count, size)
        for size in args.environments
        for count in args.counts
    }
    first = next(iter(contenders))
    print(table("frames trained", "/s", interleave(contenders, args.rounds), first))


if __name__ == "__main__":
    main()
