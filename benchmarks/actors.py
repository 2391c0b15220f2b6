"""Frames per second against the number of actors: `python -m benchmarks.actors [--rounds N]`.

The actors act by themselves, or the learner acts for all of them. On CartPole the environments and
the policy are nearly all the work, until the actors have no core left; on pixels the network is.
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
RECIPES = {"cartpole": 300, "catch": 90}
"""Recipe -> steps of a run; a third of them come before what is measured."""


def frames_per_sec(recipe: str, inference: str, actors: int, environments: int) -> float:
    """Return the frames that are trained on in a second, the median over the run."""
    steps = RECIPES[recipe]
    with tempfile.TemporaryDirectory() as runs:
        run_child(
            [
                sys.executable, "train.py", f"experiment=impala_{recipe}", f"runs_dir={runs}",
                f"train.steps={steps}", f"task.unroll_length={LENGTH}", f"actors.count={actors}",
                f"actors.environments={environments}", f"actors.inference={inference}",
                "evaluate.every_steps=null", "evaluate.episodes=1", "checkpoint.every_steps=null",
                f"summary.every_steps={steps // 6}", "writers=[jsonl]",
            ]
        )  # fmt: skip
        (log,) = Path(runs).glob("*/metrics.jsonl")
        lines = map(json.loads, log.read_text().splitlines())
        return LENGTH * statistics.median(
            line["examples_per_sec"]
            for line in lines
            if line["split"] == "train" and line["step"] > steps // 3
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.actors", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", default=[*RECIPES], choices=RECIPES)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--environments", type=int, nargs="+", default=[16])
    args = parser.parse_args()
    for recipe in args.recipes:
        contenders = {
            f"{count} x {size} environments, {inference} acts": partial(
                frames_per_sec, recipe, inference, count, size
            )
            for size in args.environments
            for count in args.counts
            for inference in ("actor", "learner")
        }
        first = next(iter(contenders))
        title = f"impala_{recipe}: frames trained"
        print(table(title, "/s", interleave(contenders, args.rounds), first), flush=True)


if __name__ == "__main__":
    main()
