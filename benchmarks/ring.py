"""A reference ring all-reduce, counted: `python -m benchmarks.ring [--workers N] [--mb S] ...`.

Each of n processes cuts its S bytes into n chunks and talks to its neighbors alone: it sends to
the right while it receives from the left (Patarasuk and Yuan 2009).

    reduce-scatter, n - 1 messages: pass on the chunk that was just added to; at the end each
        process has one chunk with the sum of all
    all-gather, n - 1 messages: pass on the chunk that was just received

So each sends 2 (n - 1) messages of S / n bytes, which is the least possible. The command puts it
beside Steadfast's shared memory and TensorFlow's ring.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT, interleave, table

_LIMIT_SECS = 300.0
_STEADFAST = "Steadfast, shared memory"
_TENSORFLOW = "TensorFlow's ring"
_REFERENCE = "reference ring"


@dataclass
class Count:
    """What a process has sent."""

    messages: int = 0
    num_bytes: int = 0


class Ring:
    """One process of a ring.

    Attributes:
        sent: what it has sent so far.

    Args:
        rank: number of the process.
        count: number of processes, at least 2.
        left: connected to the process before it, which sends to it.
        right: connected to the process after it.
    """

    def __init__(self, rank: int, count: int, left: socket.socket, right: socket.socket) -> None:
        self._rank = rank
        self._count = count
        self._left = left
        self._right = right
        self.sent = Count()

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a contiguous vector by the sum of those of all processes."""
        self.reduce_scatter(values)
        self.all_gather(values)

    def reduce_scatter(self, values: np.ndarray) -> slice:
        """Add up the vectors of all processes in one chunk of this one; return which chunk."""
        chunks = self.chunks(len(values))
        for step in range(self._count - 1):
            ours = chunks[(self._rank - step) % self._count]
            theirs = chunks[(self._rank - step - 1) % self._count]
            received = np.empty_like(values[theirs])
            self._pass_on(values[ours], received)
            values[theirs] += received
        return chunks[(self._rank + 1) % self._count]

    def all_gather(self, values: np.ndarray) -> None:
        """Replace all chunks but the one that `reduce_scatter` returned by those of the others."""
        chunks = self.chunks(len(values))
        for step in range(self._count - 1):
            ours = chunks[(self._rank + 1 - step) % self._count]
            theirs = chunks[(self._rank - step) % self._count]
            self._pass_on(values[ours], values[theirs])

    def chunks(self, size: int) -> list[slice]:
        """Return the chunks of a vector; their lengths differ by 1 at most."""
        ends = [size * number // self._count for number in range(self._count + 1)]
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]

    def _pass_on(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Send a message while another is received: a socket holds less than a chunk."""
        out = memoryview(ours).cast("B")
        into = memoryview(theirs).cast("B")
        self.sent.messages += 1
        self.sent.num_bytes += len(out)
        while out or into:
            readable, writable, _ = select.select(
                [self._left] if into else [], [self._right] if out else [], [], _LIMIT_SECS
            )
            if not readable and not writable:
                raise TimeoutError("a neighbor in the ring does not answer")
            if readable:
                num_bytes = self._left.recv_into(into)
                if num_bytes == 0:
                    raise ConnectionError("a neighbor in the ring has gone")
                into = into[num_bytes:]
            if writable:
                out = out[self._right.send(out) :]


def links(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return the ends of each process of a ring: that to its left neighbor, that to its right."""
    pairs = [socket.socketpair() for _ in range(count)]  # number i leads from i to i + 1
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
    return [(pairs[rank - 1][1], pairs[rank][0]) for rank in range(count)]


@dataclass(frozen=True)
class Result:
    """What a process reports.

    Attributes:
        secs: the time of one all-reduce.
        sent: what it sends in it.
        error: the largest difference from the sum that it must be.
    """

    secs: float
    sent: Count
    error: float


def run_processes(count: int, size: int, repeats: int) -> list[Result]:
    """Run a ring of processes on this machine; return the result of each.

    Args:
        count: number of processes.
        size: float32 numbers in each process's vector.
        repeats: all-reduces that are timed.
    """
    ends = links(count)
    processes = []
    try:
        for rank, pair in enumerate(ends):
            numbers = [rank, count, size, repeats, *(end.fileno() for end in pair)]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.ring", "--process", *map(str, numbers)],
                    cwd=ROOT,
                    pass_fds=[end.fileno() for end in pair],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        # Open here, the ends of a process that has died would keep its neighbors waiting.
        for pair in ends:
            for end in pair:
                end.close()
        reports = [json.loads(process.communicate(timeout=_LIMIT_SECS)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()  # no effect on one that has ended
            process.wait()
    return [Result(report["secs"], Count(**report["sent"]), report["error"]) for report in reports]


def _process(rank: int, count: int, size: int, repeats: int, left: int, right: int) -> Result:
    ring = Ring(rank, count, socket.socket(fileno=left), socket.socket(fileno=right))
    for end in (ring._left, ring._right):
        end.setblocking(False)
    values = np.arange(size, dtype=np.float32) % 7 + rank
    wanted = count * (np.arange(size, dtype=np.float32) % 7) + sum(range(count))
    ring.all_reduce(values)
    error = float(np.abs(values - wanted).max(initial=0.0))
    sent = Count(**asdict(ring.sent))
    values[:] = 1.0
    began = time.perf_counter()
    for _ in range(repeats):
        ring.all_reduce(values)
    return Result((time.perf_counter() - began) / max(1, repeats), sent, error)


def _reference_secs(workers: int, size: int) -> float:
    return statistics.fmean(result.secs for result in run_processes(workers, size, repeats=10))


def _steadfast_secs(workers: int, size: int, communication: str) -> float:
    """Return the seconds of the gradient's sum alone, as mode=benchmark measures it."""
    from trainer.cli.compose import compose
    from trainer.launch.modes.benchmark_processes import Variants, measure_together
    from trainer.launch.processes.fork_server import ForkServer
    from trainer.launch.resolved_run import resolve

    experiment = compose(
        [
            "mode=benchmark",
            "benchmark.secs=0.5",
            "strategy=multi_worker",
            f"strategy.workers={workers}",
            f"strategy.communication={communication}",
            "model=softmax",
            "optimizer=sgd",
            "dataset=synthetic",
            "dataset.num_examples=256",
            "dataset.image_size=[32,32]",
            "dataset.channels=1",
            f"dataset.num_classes={max(2, size // 1025)}",
            "batch.global_size=null",
            "batch.per_replica=2",
        ]
    )
    server = ForkServer.acquire()
    try:
        with tempfile.TemporaryDirectory() as folder:
            variants = Variants(experiment, resolve(experiment).strategy, Path(folder))
            reports = measure_together([variants.together(workers)], server)
            return statistics.fmean(report["exchange_secs"] for report in reports)
    finally:
        server.release()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ring", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--mb", type=float, default=8.0, help="size S, default: %(default)s MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--process", type=int, nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.process:
        print(json.dumps(asdict(_process(*args.process))))
        return
    size = int(args.mb * 1e6 / 4)
    for result in run_processes(args.workers, size, repeats=0):
        print(
            f"reference ring: {result.sent.messages} messages, "
            f"{result.sent.num_bytes / 1e6:.2f} MB sent, error {result.error:g}"
        )
    print(f"2 (n - 1) / n S: {2 * (args.workers - 1) / args.workers * 4 * size / 1e6:.2f} MB")
    contenders = {
        _STEADFAST: partial(_steadfast_secs, args.workers, size, "direct"),
        _TENSORFLOW: partial(_steadfast_secs, args.workers, size, "ring"),
        _REFERENCE: partial(_reference_secs, args.workers, size),
    }
    results = {
        name: [1000 * secs for secs in rounds]
        for name, rounds in interleave(contenders, args.rounds).items()
    }
    title = f"An all-reduce of {args.mb:g} MB by {args.workers} processes, {os.cpu_count()} cores"
    print(table(title, "ms", results, _STEADFAST))


if __name__ == "__main__":
    main()
