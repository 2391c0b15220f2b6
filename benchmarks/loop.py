"""Time of a step: `python -m benchmarks.loop [--model ...] [--optimizer ...] [--batch N]`.

Marginal time: two trainings of different lengths, the difference in time over the difference in
steps, so that start-up and compilation cancel.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    BATCH_SIZES,
    LEARNING_RATES,
    PEERS,
    STEADFAST,
    Job,
    data_file,
    end_at,
    first_step_at,
    installed,
    interleave,
    read_records,
    run_peer,
    run_steadfast,
    table,
    write_records,
)

STEPS_PER_LOOP = 50
# Short and long training, both longer than one loop: Steadfast's clock starts when the first loop
# is done. The difference takes seconds, and has the usual share of checkpoints.
LENGTHS = {"softmax": (2_000, 22_000), "tutorial_cnn": (60, 360), "mobilenet": (60, 140)}


def steadfast_ms(job: Job, steps: tuple[int, int], *overrides: str) -> float:
    """Measure Steadfast: from the first step to the end of a short and of a long training."""
    secs = []
    for count in steps:
        per_loop = f"train.steps_per_loop={job.steps_per_loop}"
        ledger, _ = run_steadfast(job, count, per_loop, *overrides)
        secs.append(end_at(ledger) - first_step_at(ledger))
    return 1000 * (secs[1] - secs[0]) / (steps[1] - steps[0])


def peer_ms(name: str, job: Job, steps: tuple[int, int]) -> float:
    """Measure a peer."""
    report, _ = run_peer(name, job, steps)
    return 1000 * report["secs_per_step"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loop", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="rmsprop")
    parser.add_argument("--batch", type=int, help="examples in a step; default: as in the tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a JSON file of records, such as results.json")
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    steps = LENGTHS[args.model]
    with data_file(args.data) as data:
        batch_size = args.batch or BATCH_SIZES[args.model]
        job = Job(args.model, args.optimizer, data, STEPS_PER_LOOP, batch_size)
        contenders = {STEADFAST: partial(steadfast_ms, job, steps)}
        contenders |= {
            title: partial(peer_ms, name, job, steps)
            for name, title in PEERS.items()
            if installed(name)
        }
        results = interleave(contenders, args.rounds)
    name = f"{args.model}, {args.optimizer}, batch {job.batch_size}"
    title = f"{name}: milliseconds a step, {args.rounds} rounds"
    missing = [title for name, title in PEERS.items() if not installed(name)]
    print(table(title, "ms", results, missing=missing))
    if args.out:
        rounded = {
            title: [float(f"{ms:.3g}") for ms in values] for title, values in results.items()
        }
        jobs = read_records(args.out).get("loop", {})
        write_records(args.out, {"loop": jobs | {name: rounded}})


if __name__ == "__main__":
    main()
