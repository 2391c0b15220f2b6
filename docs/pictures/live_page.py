"""Photographs the page of runs: `ui-1.png`, `ui-6.png`, `ui-200.png`, `ui-sweep.png`, `report.png`.

The first shows a cluster that trains, the next two runs that are made up, the others a sweep and
a run of which a process is killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.pictures.support import ROOT, TIMEOUT_SECS, TRAIN, Picture, browser_page, train

CLUSTER = [*TRAIN, "strategy=multi_worker", "train.epochs=60", "summary.every_steps=5"]
SWEEP = ["-m", "model=cnn", "optimizer.learning_rate=0.01,0.003,0.001", "train.epochs=10"]
SWEEP += ["summary.every_steps=10"]
KILLED = ["strategy=multi_worker", "fault=kill_worker_1_at_50", *SWEEP[-2:]]
MANY = [sys.executable, "-m", "tests.support.fake_runs", "runs", "--lines", "300", "--live", "3"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
EVALUATIONS = 6
DRAWN_SECS = 2  # until the curves are drawn


@contextmanager
def started(command: list[str], directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block."""
    process = subprocess.Popen(
        command, cwd=directory, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def photograph(name: str, address: str) -> Picture:
    """Take a picture of a page of runs."""
    with browser_page(1280, 620) as page:
        page.goto(address)
        page.get_by_text("accuracy").first.wait_for()  # a run is listed
        page.wait_for_timeout(1000 * DRAWN_SECS)
        return Picture(name, page.screenshot(), page.inner_text("body"))


def photograph_live(name: str, command: list[str], folder: Path, run: str) -> Picture:
    """Take a picture while a program writes, once a run of such a name has been evaluated."""
    folder.mkdir()
    deadline = time.monotonic() + TIMEOUT_SECS
    with started(command, folder):
        while not any(
            file.read_text().count('"split": "test"') >= EVALUATIONS
            for file in folder.glob(f"runs/{run}/metrics.jsonl")
        ):
            assert time.monotonic() < deadline, command
            time.sleep(0.2)
        return photograph_ui(name, folder)


def photograph_ui(name: str, folder: Path) -> Picture:
    """Take a picture of the live page of a folder of runs."""
    with started([*TRAIN, "ui"], folder) as server:
        assert server.stdout
        addresses = (re.search(r"http://\S+", text) for text in server.stdout)
        return photograph(name, next(filter(None, addresses))[0])


def pictures() -> Iterator[Picture]:
    """Take all."""
    with tempfile.TemporaryDirectory() as scratch:
        yield photograph_live("ui-1.png", CLUSTER, Path(scratch, "one"), "*")
        for count in (6, 200):
            last = f"*-{count:08x}"  # of those that train
            command = [*MANY, "--runs", str(count)]
            yield photograph_live(f"ui-{count}.png", command, Path(scratch, str(count)), last)
        sweep = Path(scratch, "sweep")
        sweep.mkdir()
        train(sweep, *SWEEP)
        train(sweep, *KILLED)
        yield photograph_ui("ui-sweep.png", sweep)
        train(sweep, "report", "runs")
        yield photograph("report.png", (sweep / "report.html").as_uri())
