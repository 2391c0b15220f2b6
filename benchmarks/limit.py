"""How near a step is to the limit: `python -m benchmarks.limit [--model ...] [--rounds N]`.

One process in which three take turns: Steadfast's whole training loop, but no supervisor and no
checkpoint within a turn; the compiled function that Keras' `fit` calls, without what `fit` does
around it; and the bare step. Ratios are of turns of one round, both of time and of the processor
time of all threads, which other load on the machine disturbs less. The first turn of each compiles
and is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import (
    BATCH_SIZES,
    LEARNING_RATES,
    PEERS,
    STEADFAST,
    Job,
    data_file,
    interleave,
)

if TYPE_CHECKING:
    from trainer.engine.engine import Engine

STEPS = {"softmax": 2_000, "tutorial_cnn": 50, "mobilenet": 10}
"""Steps in a turn: about a second."""


class Turn(NamedTuple):
    """What the steps of a turn took, in milliseconds a step."""

    ms: float
    processor_ms: float


def engine(job: Job, folder: Path) -> Engine:
    """Build Steadfast's engine, which writes its events and lines once in a turn."""
    from trainer.cli import compose
    from trainer.cluster.messages import Channel
    from trainer.worker.training import TrainingRun

    overrides = [
        "strategy=one_device",
        f"model={job.model}",
        "dataset=mnist",
        f"dataset.path={job.data}",
        f"optimizer={job.optimizer}",
        f"optimizer.learning_rate={LEARNING_RATES[job.optimizer]}",
        f"batch.global_size={job.batch_size}",
        "train.steps=1000000",
        "train.epochs=null",
        f"train.steps_per_loop={job.steps_per_loop}",
        f"summary.every_steps={job.steps_per_loop}",
        "evaluate.every_epochs=null",
        "checkpoint.every_epochs=null",
    ]
    return TrainingRun(compose.compose(overrides), folder, Channel(lambda message: None)).engine


def clock() -> Turn:
    """Return the time and the processor time of this process, in milliseconds."""
    return Turn(1000 * time.perf_counter(), 1000 * time.process_time())


def steadfast(trained: Engine, steps: int) -> Turn:
    """Train on; restoring before and saving afterward are not counted."""
    marks: dict[int, Turn] = {}

    def stop_requested() -> bool:
        marks.setdefault(trained.step, clock())
        return trained.step >= min(marks) + steps

    trained.train(stop_requested)
    return _per_step(marks[min(marks)], marks[max(marks)], max(marks) - min(marks))


def called(train: Callable[[], object], steps: int) -> Turn:
    """Call what trains `steps` steps and waits for them."""
    start = clock()
    train()
    return _per_step(start, clock(), steps)


def _per_step(start: Turn, end: Turn, steps: int) -> Turn:
    return Turn(*((after - before) / steps for before, after in zip(start, end, strict=True)))


def contenders(job: Job, folder: Path) -> dict[str, Callable[[], Turn]]:
    """Build all three; return functions that train a turn of `job.steps_per_loop` steps each."""
    from benchmarks import peers

    steps = job.steps_per_loop
    fit = peers.compiled_model(job).make_train_function()
    bare = peers.limit(job)
    iterator = iter(peers.pipeline(job))
    turns = {
        STEADFAST: partial(steadfast, engine(job, folder), steps),
        PEERS["fit"]: partial(called, lambda: float(fit(iterator)["loss"]), steps),
        PEERS["limit"]: partial(called, lambda: bare(steps), steps),
    }
    for turn in turns.values():
        turn()
    return turns


def rows(results: dict[str, list[Turn]]) -> str:
    """Format medians, and the median ratio to Steadfast's turn of the same round."""
    lines = [
        f"| | median, ms | range | ratio to {STEADFAST} | processor time, ms | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, turns in results.items():
        pairs = list(zip(turns, results[STEADFAST], strict=True))
        ms, processor_ms = map(statistics.median, zip(*turns, strict=True))
        ratio = statistics.median(turn.ms / own.ms for turn, own in pairs)
        processor_ratio = statistics.median(
            turn.processor_ms / own.processor_ms for turn, own in pairs
        )
        ranged = f"{min(turns).ms:.3g} to {max(turns).ms:.3g}"
        lines.append(
            f"| {name} | {ms:.3g} | {ranged} | {ratio:.2f} "
            f"| {processor_ms:.3g} | {processor_ratio:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.limit", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="rmsprop")
    parser.add_argument("--batch", type=int, help="examples in a step; default: as in the tables")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with data_file(args.data) as data, tempfile.TemporaryDirectory() as folder:
        batch_size = args.batch or BATCH_SIZES[args.model]
        job = Job(args.model, args.optimizer, data, STEPS[args.model], batch_size)
        results = interleave(contenders(job, Path(folder)), args.rounds)
    lengths = f"{args.rounds} rounds of {job.steps_per_loop} steps"
    print(f"{args.model}, {args.optimizer}, batch {batch_size}: milliseconds a step, {lengths}\n")
    print(rows(results))


if __name__ == "__main__":
    main()
