"""Photographs the page of runs: `ui-1.png`, `ui-200.png`, `ui-sweep.png` and `report.png`.

The first shows a cluster that trains, the second runs that are made up, the others a sweep and a
run of which a process is killed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.pictures.support import ROOT, TIMEOUT_SECS, TRAIN, browser_page, save, train

CLUSTER = [*TRAIN, "strategy=multi_worker", "train.epochs=60", "summary.every_steps=5"]
SWEEP = ["-m", "model=cnn", "optimizer.learning_rate=0.01,0.003,0.001", "train.epochs=10"]
SWEEP += ["summary.every_steps=10"]
KILLED = ["strategy=multi_worker", "fault=kill_worker_1_at_50", *SWEEP[-2:]]
MANY = [sys.executable, str(ROOT / "tests" / "support" / "fake_runs.py"), "runs"]
MANY += ["--runs", "200", "--lines", "300", "--live", "3"]
EVALUATIONS = 6
DRAWN_SECS = 2  # until the curves are drawn


@contextmanager
def started(command: list[str], directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block."""
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def photograph(name: str, address: str) -> None:
    """Take a picture of a page of runs."""
    with browser_page(1280, 700) as page:
        page.goto(address)
        page.get_by_text("accuracy").first.wait_for()  # a run is listed
        page.wait_for_timeout(1000 * DRAWN_SECS)
        save(name, page.screenshot())


def photograph_live(name: str, command: list[str], folder: Path, files: str) -> None:
    """Take a picture of the live page of a folder of runs while a program writes there.

    Args:
        name: of the picture.
        command: the program.
        folder: where it is started.
        files: pattern of the metrics of the runs that must have come so far.
    """
    deadline = time.monotonic() + TIMEOUT_SECS
    with started(command, folder):
        while not any(
            file.read_text().count('"split": "test"') >= EVALUATIONS for file in folder.glob(files)
        ):
            assert time.monotonic() < deadline, command
            time.sleep(0.2)
        photograph_ui(name, folder)


def photograph_ui(name: str, folder: Path) -> None:
    """Take a picture of the live page of a folder of runs."""
    with started([*TRAIN, "ui"], folder) as server:
        assert server.stdout
        addresses = (re.search(r"http://\S+", text) for text in server.stdout)
        photograph(name, next(filter(None, addresses))[0])


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        one, many, sweep = (Path(scratch, name) for name in ("one", "many", "sweep"))
        for folder in (one, many, sweep):
            folder.mkdir()
        photograph_live("ui-1.png", CLUSTER, one, "runs/*/metrics.jsonl")
        last = f"runs/*-{200:08x}/metrics.jsonl"  # of those that train
        photograph_live("ui-200.png", MANY, many, last)
        train(sweep, *SWEEP)
        train(sweep, *KILLED)
        photograph_ui("ui-sweep.png", sweep)
        train(sweep, "report", "runs")
        photograph("report.png", (sweep / "report.html").as_uri())
