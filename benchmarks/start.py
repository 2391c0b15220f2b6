"""Time to the end of the first step, and peak memory: `python -m benchmarks.start [--rounds N]`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    BATCH_SIZES,
    PEERS,
    STEADFAST,
    Job,
    data_file,
    first_step_at,
    installed,
    interleave,
    run_peer,
    run_steadfast,
    table,
)


def steadfast_start(job: Job) -> tuple[float, float]:
    """Measure Steadfast: seconds to the first step, peak memory in MiB."""
    ledger, child = run_steadfast(job, 1)
    return first_step_at(ledger) - child.started_at, child.peak_mib


def peer_start(name: str, job: Job) -> tuple[float, float]:
    """Measure a peer: seconds to the first step, peak memory in MiB."""
    report, child = run_peer(name, job)
    return report["first_step_at"] - child.started_at, child.peak_mib


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    peers = {name: title for name, title in PEERS.items() if name != "limit"}
    with data_file(args.data) as data:
        # One step in a graph call: the first one is seen as soon as it is done.
        job = Job(args.model, "rmsprop", data, 1, BATCH_SIZES[args.model])
        contenders = {STEADFAST: partial(steadfast_start, job)}
        contenders |= {
            title: partial(peer_start, name, job)
            for name, title in peers.items()
            if installed(name)
        }
        results = interleave(contenders, args.rounds)
    missing = [title for name, title in peers.items() if not installed(name)]
    for index, (title, unit) in enumerate(
        [
            ("seconds from launch to the first step", "s"),
            ("peak memory of the largest process", "MiB"),
        ]
    ):
        values = {name: [pair[index] for pair in pairs] for name, pairs in results.items()}
        print(
            table(f"{args.model}: {title}, {args.rounds} rounds", unit, values, missing=missing),
            end="\n\n",
        )


if __name__ == "__main__":
    main()
