"""What can be seen, and what it costs: `python -m benchmarks.summaries [--model ...] [--rounds N] [--steps N]`.

One process trains the same model by turns without writers, with the default ones, and with histograms or images besides: the engine's
whole loop, but no evaluation and no checkpoint within what is timed. The first turn of each compiles and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES, data_file, interleave

if TYPE_CHECKING:
    from trainer.engine import Engine

NOTHING = "no writers"
EVERY = 100
WAYS = {
    NOTHING: ["summary.writers=[]"],
    f"TensorBoard and JSON lines, scalars every {EVERY} steps": [],
    f"the same, and histograms every {EVERY} steps": [f"summary.histograms={EVERY}"],
    f"the same, and images every {EVERY} steps": [f"summary.images={EVERY}"],
}


def measured(engine: Engine, steps: int) -> float:
    """Trains on for `steps` steps, after as many as are written at a time; gives the milliseconds a step."""
    first, marks = engine.step + EVERY, {}

    def stop_requested() -> bool:
        marks.setdefault(engine.step, time.perf_counter())
        return engine.step >= first + steps

    engine.train(stop_requested)
    return 1000 * (marks[first + steps] - marks[first]) / steps


@contextlib.contextmanager
def ways(model: str, optimizer: str, data: Path, steps: int) -> Iterator[dict[str, Callable[[], float]]]:
    """Builds an engine for each way; gives functions that give the milliseconds a step."""
    from trainer import build, cli
    from trainer.channel import Channel

    overrides = [
        f"model={model}", "dataset=mnist", f"dataset.path={data}", f"optimizer={optimizer}", "train.steps=1000000",
        f"optimizer.learning_rate={LEARNING_RATES[optimizer]}", f"batch.global_size={BATCH_SIZES[model]}", f"summary.every_steps={EVERY}",
        "train.steps_per_loop=50", "evaluate.every_epochs=null", "checkpoint.every_epochs=null",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for number, (way, more) in enumerate(WAYS.items()):
            (run := Path(folder, str(number))).mkdir()
            engine = build.engine(cli.compose([*overrides, *more]), run, Channel(lambda message: None))
            measured(engine, EVERY)
            made[way] = partial(measured, engine, steps)
        yield made


def rows(results: dict[str, list[float]]) -> str:
    """Formats the medians, and of each way's throughput the median of the rounds' ratios to that without writers."""
    lines = ["| | median, ms | range | throughput, of that without writers | range |", "| --- | ---: | ---: | ---: | ---: |"]
    for way, values in results.items():
        ratios = [base / value for base, value in zip(results[NOTHING], values, strict=True)]
        own = f"{statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f}"
        lines.append(f"| {way} | {own} | {statistics.median(ratios):.1%} | {min(ratios):.1%} to {max(ratios):.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summaries", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="rmsprop")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300, help="steps in a turn, a multiple of 100")
    parser.add_argument("--data", type=Path, help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise")
    args = parser.parse_args()
    if args.steps < EVERY or args.steps % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}")
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with data_file(args.data) as data, ways(args.model, args.optimizer, data, args.steps) as contenders:
        results = interleave(contenders, args.rounds)
    lengths = f"{args.rounds} rounds of {args.steps} steps"
    print(f"{args.model}, {args.optimizer}, batch {BATCH_SIZES[args.model]}: milliseconds a step, {lengths}\n")
    print(rows(results))


if __name__ == "__main__":
    main()
