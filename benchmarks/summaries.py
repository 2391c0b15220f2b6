"""Cost of metrics writers: `python -m benchmarks.summaries [--model ...] [--rounds N] [--steps N]`.

One process trains the same model in turn without writers, with the default ones, and with
histograms or images too: the engine's whole loop, but no evaluation and no checkpoint within the
timed part. The first turn of each compiles and is not counted.

Ratios of throughputs have the noise of the machine, which may exceed the cost of a writer. So the
cost is measured directly too: how long the loop reports instead of training, and how much processor
time the writers' threads take meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES, data_file, interleave

if TYPE_CHECKING:
    from trainer.engine.engine import Engine

NOTHING = "no writers"
EVERY = 100
WAYS = {
    NOTHING: ["writers=[]"],
    f"TensorBoard and JSON lines, scalars every {EVERY} steps": [],
    f"the same, and histograms every {EVERY} steps": [f"summary.histograms={EVERY}"],
    f"the same, and images every {EVERY} steps": [f"summary.images={EVERY}"],
}


@dataclass(frozen=True)
class Turn:
    """What some steps took.

    Attributes:
        ms: milliseconds a step.
        reporting: the part of the time in which the loop reported.
        writing: the processor time of the writers' threads, as a part of the time.
    """

    ms: float
    reporting: float
    writing: float


class Meter:
    """Measures an engine.

    Args:
        engine: trains on, turn by turn.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reporting = 0.0
        self._handle_events = engine.handle_events
        engine.handle_events = self._timed_handle_events

    def train(self, steps: int) -> Turn:
        """Train on for `steps` steps, after as many as are written at a time."""
        first = self._engine.step + EVERY
        marks = {}

        def stop_requested() -> bool:
            marks.setdefault(
                self._engine.step, (time.perf_counter(), self._reporting, writers_secs())
            )
            return self._engine.step >= first + steps

        self._engine.train(stop_requested)
        secs, reporting, writing = (
            after - before for before, after in zip(marks[first], marks[first + steps], strict=True)
        )
        return Turn(1000 * secs / steps, reporting / secs, writing / secs)

    def _timed_handle_events(self, stop_requested: Callable[[], bool]) -> None:
        began = time.perf_counter()
        try:
            self._handle_events(stop_requested)
        finally:
            self._reporting += time.perf_counter() - began


def writers_secs() -> float:
    """Return the processor time that the threads of writers have taken."""
    idents = [
        thread.ident
        for thread in threading.enumerate()
        if thread.name == "writer" and thread.ident is not None
    ]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)


@contextlib.contextmanager
def ways(
    model: str, optimizer: str, data: Path, steps: int
) -> Iterator[dict[str, Callable[[], Turn]]]:
    """Build an engine for each way; return functions that train a turn."""
    from trainer.cli import compose
    from trainer.cluster.messages import Channel
    from trainer.worker.building import build

    overrides = [
        f"model={model}",
        "dataset=mnist",
        f"dataset.path={data}",
        f"optimizer={optimizer}",
        f"optimizer.learning_rate={LEARNING_RATES[optimizer]}",
        f"batch.global_size={BATCH_SIZES[model]}",
        "train.steps=1000000",
        f"summary.every_steps={EVERY}",
        "train.steps_per_loop=50",
        "evaluate.every_epochs=null",
        "checkpoint.every_epochs=null",
    ]
    with tempfile.TemporaryDirectory() as folder:
        contenders = {}
        for number, (way, more) in enumerate(WAYS.items()):
            (run := Path(folder, str(number))).mkdir()
            meter = Meter(
                build.engine(
                    compose.compose([*overrides, *more]), run, Channel(lambda message: None)
                )
            )
            meter.train(EVERY)
            contenders[way] = partial(meter.train, steps)
        yield contenders


def rows(results: dict[str, list[Turn]]) -> str:
    """Format medians, and each throughput's median ratio to that without writers in the round."""
    lines = [
        "| | median, ms | throughput, of that without writers | range "
        "| the loop reports | writers' threads |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way, turns in results.items():
        ratios = [base.ms / turn.ms for base, turn in zip(results[NOTHING], turns, strict=True)]
        ms, reporting, writing = (
            statistics.median(getattr(turn, name) for turn in turns)
            for name in ("ms", "reporting", "writing")
        )
        ranged = f"{statistics.median(ratios):.1%} | {min(ratios):.1%} to {max(ratios):.1%}"
        lines.append(f"| {way} | {ms:.2f} | {ranged} | {reporting:.2%} | {writing:.2%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.summaries", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="rmsprop")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300, help="steps in a turn, a multiple of 100")
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    if args.steps < EVERY or args.steps % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}")
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with (
        data_file(args.data) as data,
        ways(args.model, args.optimizer, data, args.steps) as contenders,
    ):
        results = interleave(contenders, args.rounds)
    lengths = f"{args.rounds} rounds of {args.steps} steps"
    print(
        f"{args.model}, {args.optimizer}, batch {BATCH_SIZES[args.model]}: "
        f"milliseconds a step, {lengths}\n"
    )
    print(rows(results))


if __name__ == "__main__":
    main()
