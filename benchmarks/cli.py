"""Response time of the command line (no TensorFlow): `python -m benchmarks.cli [--rounds N]`."""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, interleave

LIMIT_SECS = 1.5
QUESTIONS = {
    "--help": ["--help"],
    "--help model=mobilenet": ["--help", "model=mobilenet"],
    "--cfg job": ["--cfg", "job"],
    "completion of a choice": ["completion", "query", "model=m"],
    "completion of a key": ["completion", "query", "optimizer=sgd", "optimizer."],
    "runs": ["runs", "."],
    "a wrong key": ["optimizer.learning_rte=0.1"],
    "a wrong choice": ["model=mobilnet"],
    "a wrong point of a sweep": ["-m", "model=cnn,mobilenet", "optimizer.learning_rate=0.1,0"],
}
"""Name -> arguments."""


def ask(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Measure one answer: seconds, and seconds of processor time.

    Other load on the machine hardly changes the latter.

    Raises:
        SystemExit: it is neither an answer nor an error of the user's.
    """
    began = time.perf_counter()
    used = processor_secs()
    process = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    secs = time.perf_counter() - began, processor_secs() - used
    if process.returncode not in (0, 2):
        raise SystemExit(
            f"{' '.join(arguments)}\nended with {process.returncode}:\n{process.stderr}"
        )
    return secs


def processor_secs() -> float:
    """Return the processor time of all children so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(results: dict[str, list[tuple[float, float]]]) -> str:
    """Format medians and ranges."""
    lines = ["| | median, s | range | processor time, s |", "| --- | ---: | ---: | ---: |"]
    for name, values in results.items():
        secs, used = zip(*values, strict=True)
        lines.append(
            f"| {name} | {statistics.median(secs):.2f} | {min(secs):.2f} to {max(secs):.2f} "
            f"| {statistics.median(used):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cli", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = interleave(
            {name: partial(ask, arguments, Path(folder)) for name, arguments in QUESTIONS.items()},
            args.rounds,
        )
    print(table(results))
    slow = [
        name
        for name, values in results.items()
        if statistics.median(secs for secs, _ in values) > LIMIT_SECS
    ]
    print(f"\nLonger than {LIMIT_SECS} s: {', '.join(slow) or 'none'}.")


if __name__ == "__main__":
    main()
