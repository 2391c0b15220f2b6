"""The page of runs in Chromium: `python -m benchmarks.ui [--runs N] [--minutes N]`.

How long a browser takes to paint the page of many runs and a report of them, how long the curves of
a long run take, and what server and page take while ten runs train, each with ten lines of metrics
a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.harness import ROOT
from tests.support.fake_runs import make_runs

_LIVE = {"--runs": "0", "--live": "10", "--rate": "10"}
_TIMEOUT_SECS = 60
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def browser_path() -> str:
    """Return the path of Chromium.

    Raises:
        SystemExit: there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no Chromium is installed: apt-get install chromium")


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python for the block."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_TIMEOUT_SECS)


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a folder for the block; give the page's address and the server's process id."""
    with child("train.py", "ui", str(folder)) as process:
        assert process.stdout
        yield process.stdout.readline().strip(), process.pid


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def open_page(browser: Browser, url: str, count: int) -> tuple[Page, str]:
    """Open a page; return it, and when it was painted and when it listed so many runs."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    began = time.perf_counter()
    page.goto(url)
    page.locator("[data-id]").nth(count - 1).wait_for(
        state="attached", timeout=1000 * _TIMEOUT_SECS
    )
    listed = time.perf_counter() - began
    return page, f"first paint {page.evaluate(_PAINTED):.0f} ms, all rows {1000 * listed:.0f} ms"


def heap_mib(page: Page) -> float:
    """Return the memory of the page's objects after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage: dict[str, Any] = session.send("Runtime.getHeapUsage")
    session.detach()
    return float(usage["usedSize"]) / 2**20


def many(browser: Browser, folder: Path, count: int, rounds: int) -> None:
    """Measure the page of many runs, and a report of them."""
    with server(folder) as (url, pid):
        for number in range(rounds):
            page, text = open_page(browser, url, count)
            print(f"{count} runs, {'cold' if number == 0 else 'again'}: {text}")
            page.close()
        print(f"server: {resident_mib(pid):.0f} MiB")
    file = folder.parent / "report.html"
    began = time.perf_counter()
    command = [sys.executable, "train.py", "report", str(folder), "--output", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=300)
    secs = time.perf_counter() - began
    page, text = open_page(browser, file.as_uri(), count)
    print(f"report of {count}: {file.stat().st_size / 1e6:.1f} MB in {secs:.1f} s; {text}")
    page.close()


def long(folder: Path, lines: int) -> None:
    """Measure the answers about the curves of one run of many lines."""
    (run,) = make_runs(folder, 1, lines)
    with server(folder) as (url, _):
        address, _, token = url.partition("?")
        offset = "0"
        for text in (f"{lines:,} lines", "20 lines more"):
            began = time.perf_counter()
            query = f"{token}&id={run.path.name}&offset={offset}"
            with urlopen(f"{address}api/series?{query}", timeout=_TIMEOUT_SECS) as answer:
                content = answer.read()
            millisecs = 1000 * (time.perf_counter() - began)
            print(f"curves of {text}: {len(content) / 1e3:.0f} kB in {millisecs:.0f} ms")
            offset = json.loads(content)["offset"]
            run.train(20)


def live(browser: Browser, folder: Path, minutes: float) -> None:
    """Measure the memory of server and page while runs train and all their curves are shown."""
    folder.mkdir(parents=True)
    words: Sequence[str] = [word for option in _LIVE.items() for word in option]
    with child("-m", "tests.support.fake_runs", str(folder), *words), server(folder) as (url, pid):
        page, _ = open_page(browser, url, int(_LIVE["--live"]))
        page.click("#all")
        began = time.perf_counter()
        points = max(4, round(minutes)) + 1
        for number in range(points):
            time.sleep(max(0.0, began + 60 * minutes * number / (points - 1) - time.perf_counter()))
            lines = sum(file.read_bytes().count(b"\n") for file in folder.glob("*/metrics.jsonl"))
            print(
                f"{(time.perf_counter() - began) / 60:4.1f} min: {lines:,} lines, server "
                f"{resident_mib(pid):.1f} MiB, page {heap_mib(page):.1f} MiB"
            )
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ui", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=500, help="lines of training of each run")
    parser.add_argument("--long", type=int, default=100_000, help="lines of a long run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long runs train; 0: none")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        folder = Path(scratch) / "many" / "runs"
        make_runs(folder, args.runs, args.lines)
        many(browser, folder, args.runs, args.rounds)
        long(Path(scratch) / "long" / "runs", args.long)
        if args.minutes:
            live(browser, Path(scratch) / "live" / "runs", args.minutes)
        browser.close()


if __name__ == "__main__":
    main()
