"""How long a killed process holds a training up: `python -m benchmarks.recovery [--kills N]`.

One run on this machine, in which a process chosen by the seed is killed every so many steps, in the
middle of a graph call. What is measured is the time from each SIGKILL to the end of the first new
step, and the parts of it, as far as ledger and log tell:

    notice   until the supervisor has noticed, and the others have left their state and ended
    start    until the chief of the next attempt joins: fork, imports that are left
    connect  until it has joined the others
    build    until it restores: the model, the data
    restore  until the state, the writers and the input are there
    step     until the first step is made, which traces and compiles where no standby has

A cold start of the same command, from its launch to the end of the first step, is beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import (
    BATCH_SIZES,
    LEARNING_RATES,
    data_file,
    first_steps_at,
    read_ledger,
    run_child,
)

PARTS = ("notice", "start", "connect", "build", "restore", "step")
_DELAY_SECS = 0.2  # at most, from the step of a kill to the kill itself
_LOGGED = re.compile(r"^(\S+ \S+),(\d{3}) INFO \S+: (join|start|compile|train|Continuing from) ")


@dataclass(frozen=True)
class Recoveries:
    """What was measured of one run.

    Attributes:
        cold: seconds of the cold start.
        total: seconds of each recovery.
        parts: seconds of each part of each recovery.
        steps_again: steps that were made again, in all.
    """

    cold: float
    total: list[float]
    parts: dict[str, list[float]]
    steps_again: int


def command(args: argparse.Namespace, data: Path, runs: str) -> list[str]:
    """Return the command of a run whose processes are killed."""
    chance = random.Random(args.seed)
    kills = [
        f"+fault.kill_{number}={{action:kill,process:worker-{chance.randrange(args.processes)},"
        f"phase:step,at:{args.every * (number + 1)},"
        f"delay_secs:{chance.uniform(0.001, _DELAY_SECS):.3f}}}"
        for number in range(args.kills)
    ]
    several = ["strategy=multi_worker", f"strategy.workers={args.processes}"]
    return [
        *(sys.executable, "train.py", f"runs_dir={runs}", f"model={args.model}", "dataset=mnist"),
        *(several if args.processes > 1 else ["strategy=one_device"]),
        f"dataset.path={data}",
        "optimizer=rmsprop",
        f"optimizer.learning_rate={LEARNING_RATES['rmsprop']}",
        f"batch.global_size={args.processes * BATCH_SIZES[args.model]}",
        f"train.steps={args.every * (args.kills + 1)}",
        "evaluate.every_epochs=null",
        "checkpoint=every_50_steps",
        f"checkpoint.every_steps={args.every}",
        *kills,
        *args.overrides,
    ]


def measure(args: argparse.Namespace, data: Path) -> Recoveries:
    """Train a run whose processes are killed."""
    with tempfile.TemporaryDirectory() as runs:
        child = run_child(command(args, data, runs))
        (run,) = Path(runs).iterdir()
        records = [json.loads(file.read_text()) for file in (run / "faults").iterdir()]
        delays = {name: delay for name, delay in _delays(args)}
        kills = sorted(record["at"] + delays[record["fault"]] for record in records)
        ledger = read_ledger(run)
        cold, *firsts = first_steps_at(ledger)
        restarts = [mark["time"] for mark in ledger if mark["phase"] == "restart"]
        log = logged(run / "logs" / "worker-0.log")
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    for killed, restarted, first in zip(kills, restarts, firsts, strict=True):
        for part, secs in zip(PARTS, split(killed, restarted, first, log), strict=True):
            parts[part].append(secs)
    totals = [first - killed for killed, first in zip(kills, firsts, strict=True)]
    again = re.findall(r"memory of \S+\), ([\d,]+) steps again", child.output)
    steps = sum(int(number.replace(",", "")) for number in again)
    return Recoveries(cold - child.started_at, totals, parts, steps)


def _delays(args: argparse.Namespace) -> list[tuple[str, float]]:
    words = [word for word in command(args, Path(), "") if word.startswith("+fault.")]
    found = [re.fullmatch(r"\+fault\.(\w+)=.*delay_secs:([\d.]+)\}", word) for word in words]
    return [(match[1], float(match[2])) for match in found if match]


def logged(log: Path) -> list[tuple[str, float]]:
    """Return the phases that the chief has logged, each with its Unix time."""
    found = (_LOGGED.match(line) for line in log.read_text(errors="replace").splitlines())
    return [
        (match[3], datetime.fromisoformat(f"{match[1]}.{match[2]}").timestamp())
        for match in found
        if match
    ]


def split(
    killed: float, restarted: float, first: float, log: Sequence[tuple[str, float]]
) -> list[float]:
    """Return the seconds of each part; a part that a standby has made before takes none."""
    times = [killed, restarted]
    for phase in ("join", "start", "Continuing from", "compile"):
        after = [at for name, at in log if name == phase and times[-1] <= at <= first]
        times.append(after[0] if after else times[-1])
    times.append(first)
    return [max(0.0, end - start) for start, end in pairwise(times)]


def table(args: argparse.Namespace, result: Recoveries) -> str:
    """Format the median and the 95th percentile of the recovery and its parts."""
    lines = [
        f"{args.model}, {args.processes} processes, {args.kills} kills, one every {args.every} "
        f"steps {' '.join(args.overrides)}".rstrip(),
        f"steps made again: {result.steps_again}; cold start {result.cold:.2f} s",
        "",
        "| s | median | 95th percentile | longest |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, secs in {"recovery": result.total, **result.parts}.items():
        p95 = sorted(secs)[max(0, -(-95 * len(secs) // 100) - 1)]
        lines.append(f"| {name} | {statistics.median(secs):.2f} | {p95:.2f} | {max(secs):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--every", type=int, default=400, help="steps from one kill to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    parser.add_argument(
        "overrides", nargs="*", help="more of the command, as restart.standby=never"
    )
    args = parser.parse_args()
    with data_file(args.data) as data:
        print(table(args, measure(args, data)))


if __name__ == "__main__":
    main()
