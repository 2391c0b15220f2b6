"""How fast records of a slow Python source are read: in this process, and in one and two others.

`python -m benchmarks.readers` prints examples a second and their ratio to no other process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.indexed import indexed
from trainer.datasets.records.fields import Fields
from trainer.engine.graph.input.feed import Pipeline, SampleOrder, Source

BATCH = 64


class Slow:
    """Images of 32 x 32 that a loop of Python makes: about a millisecond each."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        state = index
        pixels = bytearray(3072)
        for place in range(len(pixels)):
            state = (1103515245 * state + 12345) & 0x7FFFFFFF
            pixels[place] = state >> 16 & 255
        return {"image": np.frombuffer(pixels, np.uint8).reshape(32, 32, 3), "label": index % 10}


def rate(split: Any, num_batches: int) -> float:
    """Return examples a second of the engine's own pipeline."""
    source = Source(split, BATCH, 1, SampleOrder(split.num_examples, 0))
    iterator = Pipeline(source, tf.distribute.get_strategy()).open(0)
    for _ in range(4):
        next(iterator)
    began = time.perf_counter()
    for _ in range(num_batches):
        next(iterator)
    return num_batches * BATCH / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.readers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=30, help="that are measured in a round")
    args = parser.parse_args()
    from benchmarks import readers  # by its name: other processes cannot import `__main__`

    splits = {
        count: indexed(
            train_source=readers.Slow(), processes=count, fields=Fields(num_classes=10)
        ).train
        for count in (0, 1, 2)
    }
    rates: dict[int, list[float]] = {count: [] for count in splits}
    for _ in range(args.rounds):
        for count, split in splits.items():
            rates[count].append(rate(split, args.batches))
    print("| processes | examples/s | to none |\n| --- | ---: | ---: |")
    for count, values in rates.items():
        ratio = statistics.median(
            value / base for value, base in zip(values, rates[0], strict=True)
        )
        print(f"| {count} | {statistics.median(values):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
