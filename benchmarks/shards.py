"""What shards cost: `python -m benchmarks.shards [--rounds N] [--data FILE]`.

The tutorial's CNN, a global batch of 128: the time of a step on one device with 1 to 8 shards, and
on several processes with as many shards as processes.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.harness import data_file, interleave, step_ms, table

STEPS, WARM_UP = 150, 50
NONE = "no shards"


def cnn_ms(data: Path, *options: str) -> float:
    """Return the milliseconds of a step of the tutorial's network."""
    return step_ms(data, STEPS, WARM_UP, "model=tutorial_cnn", *options)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shards", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    with data_file(args.data) as data:
        one = {NONE: partial(cnn_ms, data)}
        one |= {
            f"{shards} shards": partial(cnn_ms, data, f"batch.shards={shards}")
            for shards in (1, 2, 4, 8)
        }
        print(table("one device", "ms", interleave(one, args.rounds), NONE), flush=True)
        for workers in (2, 4):
            for communication in ("direct", "ring"):
                options = (
                    "strategy=multi_worker", f"strategy.workers={workers}",
                    f"strategy.communication={communication}",
                )  # fmt: skip
                contenders = {
                    NONE: partial(cnn_ms, data, *options),
                    f"{workers} shards": partial(cnn_ms, data, *options, f"batch.shards={workers}"),
                }
                title = f"{workers} processes, {communication}"
                print(table(title, "ms", interleave(contenders, args.rounds), NONE), flush=True)


if __name__ == "__main__":
    main()
