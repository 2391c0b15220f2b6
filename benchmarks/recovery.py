"""How long a killed process holds a training up: `python -m benchmarks.recovery [--kills N]`.

One run on this machine, in which a process chosen by the seed is killed every so many steps, in the
middle of a graph call. What is measured is the time from each SIGKILL to the end of the first new
step, and its parts, from ledger and log:

    notice   until the supervisor has noticed, and the others have ended
    start    until the chief of the next attempt joins: fork, imports that are left
    connect  until it has joined the others
    build    until it restores: the model, the data
    restore  until the state, the writers and the input are there
    step     until the first step is made, which traces and compiles where no standby has

A cold start of the same command, from its launch to the end of the first step, is next to it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
_LOGGED = re.compile(
    r"^(\S+ \S+),(\d{3}) INFO \S+: (join|start|compile|standing by|Continuing from)\b"
)


@dataclass(frozen=True)
class Recovery:
    """What one kill has cost.

    Attributes:
        total: seconds.
        is_ready: whether a standby had compiled everything when the kill came.
    """

    process: str
    total: float
    parts: dict[str, float]
    is_ready: bool


@dataclass(frozen=True)
class Run:
    """What was measured of one run.

    Attributes:
        cold: seconds of the cold start.
        steps_again: steps that were recomputed, in all.
    """

    cold: float
    recoveries: list[Recovery]
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


def measure(args: argparse.Namespace, data: Path) -> Run:
    """Train a run whose processes are killed."""
    with tempfile.TemporaryDirectory() as runs:
        child = run_child(command(args, data, runs))
        (run,) = Path(runs).iterdir()
        cold, recoveries = read(run, delays(command(args, data, runs)))
    again = re.findall(r"memory of \S+\), ([\d,]+) steps again", child.output)
    steps = sum(int(number.replace(",", "")) for number in again)
    return Run(cold - child.started_at, recoveries, steps)


def delays(words: Sequence[str]) -> dict[str, float]:
    """Return the seconds from the step of each fault to its kill."""
    found = (re.fullmatch(r"\+fault\.(\w+)=.*delay_secs:([\d.]+)\}", word) for word in words)
    return {match[1]: float(match[2]) for match in found if match}


def read(run: Path, delays: Mapping[str, float]) -> tuple[float, list[Recovery]]:
    """Return when the first step was made, Unix time, and what each kill has cost."""
    faults = [json.loads(file.read_text()) for file in (run / "faults").iterdir()]
    kills = sorted((fault["at"] + delays[fault["fault"]], fault["who"]) for fault in faults)
    ledger = read_ledger(run)
    firsts = first_steps_at(ledger)
    restarts = [mark["time"] for mark in ledger if mark["phase"] == "restart"]
    log = logged(run / "logs" / "worker-0.log")
    recoveries = [
        Recovery(
            process,
            first - killed,
            dict(zip(PARTS, split(killed, restarted, first, log), strict=True)),
            any(name == "standing by" and before < at < killed for name, at in log),
        )
        for before, (killed, process), restarted, first in zip(
            firsts[:-1], kills, restarts, firsts[1:], strict=True
        )
    ]
    return firsts[0], recoveries


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
    for phase in ("join", "start", "Continuing", "compile"):
        after = [at for name, at in log if name == phase and times[-1] <= at <= first]
        times.append(after[0] if after else times[-1])
    times.append(first)
    return [max(0.0, end - start) for start, end in pairwise(times)]


def table(args: argparse.Namespace, run: Run) -> str:
    """Format the median and the 95th percentile of the recovery and its parts."""
    ready = [recovery for recovery in run.recoveries if recovery.is_ready] or run.recoveries
    late = [recovery.total for recovery in run.recoveries if recovery not in ready]
    options = " ".join(args.overrides)
    lines = [
        f"{args.model}, {args.processes} processes, {options or 'as it is'}: cold start "
        f"{run.cold:.2f} s; {args.kills} kills, one every {args.every} steps; "
        f"{run.steps_again} steps recomputed",
        "",
        "| s | median | 95th percentile | longest |",
        "| --- | ---: | ---: | ---: |",
        _row(f"recovery ({len(ready)})", [recovery.total for recovery in ready]),
        *(_row(part, [recovery.parts[part] for recovery in ready]) for part in PARTS),
    ]
    if late:
        lines.append(_row(f"recovery before a standby was ready ({len(late)})", late))
    return "\n".join(lines)


def _row(name: str, secs: Sequence[float]) -> str:
    p95 = sorted(secs)[-(-95 * len(secs) // 100) - 1]
    return f"| {name} | {statistics.median(secs):.2f} | {p95:.2f} | {max(secs):.2f} |"


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
