"""Helpers of the benchmarks: timed child processes, interleaved rounds, tables. No TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PEERS = {
    "tutorial": "hand-written loop",
    "fit": "Keras fit",
    "orbit": "Orbit",
    "limit": "bare step (limit)",
}
STEADFAST = "Steadfast"
LEARNING_RATES = {"rmsprop": 0.001, "adam": 0.001, "sgd": 0.01}
BATCH_SIZES = {
    "softmax": 128,
    "tutorial_cnn": 64,
    "mobilenet": 64,
}  # the tutorial trains 64 on each worker
_TIME_LIMIT_SECS = 1800


@dataclass(frozen=True)
class Job:
    """What every contender trains, on the same arrays.

    Attributes:
        model: a function of `trainer.models`.
        optimizer: a key of `LEARNING_RATES`.
        data: an .npz file in MNIST's layout.
        steps_per_loop: steps in one graph call, for contenders that have such a thing.
    """

    model: str
    optimizer: str
    data: Path
    steps_per_loop: int
    batch_size: int


@dataclass(frozen=True)
class Child:
    """A process that has ended well.

    Attributes:
        output: its standard output.
        started_at: Unix time at which it was launched.
        peak_mib: resident memory of its largest process at the peak.
    """

    output: str
    started_at: float
    peak_mib: float


def run_child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
    """Run a command in this checkout; if it fails, print the end of its output and exit."""
    # tf_keras for the peers as well: the same models, and the faster of the two Keras lines.
    own = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env = os.environ | own | dict(environment or {})
    with tempfile.TemporaryFile("w+") as output:
        started_at = time.time()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # wait4, not wait: the memory of this child and its children, not of all children so far.
        status, usage = _wait(process)
        output.seek(0)
        text = output.read()
    if status != 0:
        raise SystemExit(
            f"{' '.join(command)}\nended with {status}:\n" + "\n".join(text.splitlines()[-20:])
        )
    return Child(
        text, started_at, usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    )


def _wait(process: subprocess.Popen[str]) -> tuple[int, Any]:
    deadline = time.monotonic() + _TIME_LIMIT_SECS
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.monotonic() > deadline:
            process.terminate()
        time.sleep(0.01)


def run_peer(
    name: str, job: Job, steps: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> tuple[dict[str, float], Child]:
    """Run a contender of `benchmarks.peers`; return what it reports, and the process."""
    options = {
        "model": job.model,
        "optimizer": job.optimizer,
        "data": job.data,
        "steps-per-loop": job.steps_per_loop,
        "batch": job.batch_size,
    }
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    lengths = ["--steps", *map(str, steps)] if steps else []
    command = [sys.executable, "-m", "benchmarks.peers", name, *arguments, *lengths]
    child = run_child(command, environment)
    report = [line for line in child.output.splitlines() if line.startswith("{")][-1]
    return json.loads(report), child


def run_steadfast(job: Job, steps: int, *more: str) -> tuple[list[dict[str, Any]], Child]:
    """Run `python train.py` in a new run directory; return its ledger and the process."""
    with tempfile.TemporaryDirectory() as runs:
        overrides = [
            f"runs_dir={runs}",
            "resume=never",
            "strategy=one_device",
            f"model={job.model}",
            "dataset=mnist",
            f"dataset.path={job.data}",
            f"optimizer={job.optimizer}",
            f"optimizer.learning_rate={LEARNING_RATES[job.optimizer]}",
            f"batch.global_size={job.batch_size}",
            f"train.steps={steps}",
            "train.epochs=null",
            # The peers do not evaluate. The evaluation at the end cancels: it is in every run.
            "evaluate.every_epochs=null",
            *more,
        ]
        last = {override.partition("=")[0]: override for override in overrides}  # the later counts
        child = run_child([sys.executable, "train.py", *last.values()])
        (run,) = Path(runs).iterdir()
        return read_ledger(run), child


def read_ledger(run: Path) -> list[dict[str, Any]]:
    """Read the marks of `trainer.runs.ledger`."""
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def first_steps_at(ledger: list[dict[str, Any]]) -> list[float]:
    """Return the Unix time when the first call of the loop was done, for each attempt."""
    starts = [number for number, mark in enumerate(ledger) if mark["phase"] == "start"]
    return [
        next(mark["time"] for mark in ledger[start:] if mark["phase"] == "step") for start in starts
    ]


def first_step_at(ledger: list[dict[str, Any]]) -> float:
    """Return the Unix time when the first call of the last attempt's loop was done."""
    return first_steps_at(ledger)[-1]


def end_at(ledger: list[dict[str, Any]]) -> float:
    """Return the Unix time when the training had saved for the last time."""
    return [mark["time"] for mark in ledger if mark["phase"] == "end"][-1]


def installed(peer: str) -> bool:
    """Return whether a peer can be run; only Orbit may be missing (see README.md)."""
    return peer != "orbit" or importlib.util.find_spec("orbit") is not None


@contextmanager
def data_file(path: Path | None) -> Iterator[Path]:
    """Yield a data file: `path`, else MNIST if it is found, else noise of its shape."""
    folders = [
        Path(folder)
        for folder in (os.environ.get("STEADFAST_DATA"), ROOT.parent / "shared" / "data")
        if folder
    ]
    files = (
        [path] if path else [file for folder in folders if (file := folder / "mnist.npz").is_file()]
    )
    if files:
        yield files[0].resolve()
        return
    random = np.random.RandomState(0)
    sizes = {"train": 60_000, "test": 10_000}
    arrays = {
        f"x_{split}": random.randint(0, 256, (size, 28, 28), np.uint8)
        for split, size in sizes.items()
    }
    labels = {f"y_{split}": random.randint(0, 10, size, np.uint8) for split, size in sizes.items()}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "noise.npz"
        np.savez(file, **arrays, **labels)
        yield file


def interleave(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Measure every contender once a round, so that other load on the machine affects all equally.

    Each round starts with another contender, so that none always follows the same one.
    """
    results: dict[str, list[Any]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            results[name].append(contenders[name]())
            print(f"round {number + 1}: {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    return results


def table(
    title: str,
    unit: str,
    results: dict[str, list[float]],
    base: str = STEADFAST,
    missing: Sequence[str] = (),
) -> str:
    """Format medians, ranges, and ratios to the median of `base`; name what is not installed."""
    own = statistics.median(results[base])
    lines = [
        title,
        "",
        f"| | median, {unit} | range | ratio to {base} |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, values in results.items():
        median = statistics.median(values)
        lines.append(
            f"| {name} | {_short(median)} | {_short(min(values))} to {_short(max(values))} "
            f"| {median / own:.2f} |"
        )
    lines += [f"| {name} | not installed | | |" for name in missing]
    return "\n".join(lines)


def read_records(path: Path) -> dict[str, Any]:
    """Read what benchmarks have written to a file of records; {} if it does not exist."""
    records: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return records


def write_records(path: Path, records: Mapping[str, Any]) -> None:
    """Replace the records of some benchmarks in a file."""
    path.write_text(json.dumps(read_records(path) | records, indent=1) + "\n")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
