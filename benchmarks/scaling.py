"""How training scales over processes: `python -m benchmarks.scaling [--workers N] [override ...]`.

N processes of this machine, two by default, take steps together. The ceiling is the speed of as
many processes that train the same batches alone at the same time, and exchange nothing. The loop of
TensorFlow's tutorial is measured too, unless overrides choose another configuration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.harness import (
    BATCH_SIZES,
    LEARNING_RATES,
    STEADFAST,
    Job,
    data_file,
    interleave,
    run_peer,
    table,
)
from benchmarks.loop import steadfast_ms
from trainer.cluster import discovery, spec
from trainer.cluster.environment import default_threads

STEPS_PER_LOOP = 10
LENGTHS = {"softmax": (2_000, 12_000), "tutorial_cnn": (60, 260), "mobilenet": (30, 80)}
"""Steps of a short and a long training: start and end cancel."""
RING = f"{STEADFAST}, TensorFlow's ring"


def together(count: int, measure: Callable[[int], float]) -> float:
    """Return the mean of what so many processes measure that run at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return fmean(pool.map(measure, range(count)))


def ceiling_ms(job: Job, steps: tuple[int, int], workers: int, *overrides: str) -> float:
    """Return the milliseconds of a step of as many processes, each of which trains alone."""
    return together(workers, lambda _: steadfast_ms(job, steps, *overrides))


def tutorial_ms(job: Job, steps: tuple[int, int], workers: int) -> float:
    """Return the milliseconds of a step of the tutorial's loop, as a cluster of processes."""
    process_ids = [spec.ProcessId("worker", index) for index in range(workers)]
    clusters = discovery.local_clusters(process_ids)

    def measure(index: int) -> float:
        environment = {"TF_CONFIG": clusters[index].tf_config()}
        report, _ = run_peer("tutorial", job, steps, environment)
        return 1000 * report["secs_per_step"]

    return together(workers, measure)


def contenders(
    job: Job, steps: tuple[int, int], workers: int, overrides: Sequence[str]
) -> dict[str, Callable[[], float]]:
    """Return what is measured, by its title; `job` has the batch of one worker."""
    threads = f"devices.threads={max(1, default_threads() // workers)}"
    own = ("devices.gpus=0", threads, *overrides)
    whole = Job(job.model, job.optimizer, job.data, STEPS_PER_LOOP, workers * job.batch_size)
    cluster = (*own, "strategy=multi_worker", f"strategy.workers={workers}")
    measured: dict[str, Callable[[], float]] = {
        STEADFAST: partial(steadfast_ms, whole, steps, *cluster),
        RING: partial(steadfast_ms, whole, steps, *cluster, "strategy.communication=ring"),
        "no exchange (ceiling)": partial(ceiling_ms, job, steps, workers, *own),
    }
    if not overrides:
        measured["tutorial's loop"] = partial(tutorial_ms, whole, steps, workers)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=LENGTHS, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="rmsprop")
    parser.add_argument("--batch", type=int, help="of each worker; default: as in the tables")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--steps", type=int, nargs=2, help="of a short and a long training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="an .npz file in the layout of Keras' mnist.npz")
    parser.add_argument("overrides", nargs="*", help="another configuration, as of train.py")
    args = parser.parse_args()
    batch_size = args.batch or BATCH_SIZES[args.model]
    steps = tuple(args.steps or LENGTHS[args.model])
    with data_file(args.data) as data:
        job = Job(args.model, args.optimizer, data, STEPS_PER_LOOP, batch_size)
        measured = contenders(job, steps, args.workers, args.overrides)
        results = interleave(measured, args.rounds)
    title = (
        f"{' '.join(args.overrides) or args.model}, {args.workers} processes of {batch_size} "
        f"examples: milliseconds a step, {args.rounds} rounds"
    )
    print(table(title, "ms", results))


if __name__ == "__main__":
    main()
