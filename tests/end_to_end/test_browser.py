"""TensorBoard in a real browser shows what a run and a sweep have written.

The browser is Debian's (`apt-get install chromium`); that nothing comes from a network is checked
too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.processes import finish, start

api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None,
        reason="no Chromium is installed, so nobody can look: apt-get install chromium",
    ),
]

START_SECS, PAGE_MSECS = 60, 30_000
STEPS = 20
OPTIONS = [
    "model.width=4",
    f"train.steps={STEPS}",
    "batch.global_size=64",
    "summary.every_steps=5",
    "evaluate.every_steps=10",
]
SEEN = ["name=seen", "summary.images=10", "summary.graph=true"]
RATES = ("0.01", "0.001")


TEXTS = "nodes => [...nodes].map(node => node.innerText.trim())"
"""Of many elements in one go; one at a time takes seconds."""


def last(run_dir: Path, split: str) -> dict:
    """Return the last line of a split in metrics.jsonl."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split][-1]


def fetched(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Train one run, and a sweep of two points; return the run directories by name."""
    directory = tmp_path_factory.mktemp("browser")
    started = [
        start(directory, *OPTIONS, *SEEN),
        start(
            directory, "-m", *OPTIONS, f"optimizer.learning_rate={','.join(RATES)}", "sweep.jobs=2"
        ),
    ]
    for process in started:
        code, out, err = finish(process)
        assert code == 0, out + err
    return {path.name: path for path in (directory / "runs").iterdir() if path.name != "sweeps"}


@pytest.fixture(scope="module")
def seen(runs) -> str:
    """Return the name of the run that is no point of the sweep."""
    (name,) = (name for name in runs if name.startswith("seen-"))
    return name


@pytest.fixture(scope="module")
def tensorboard(runs, tmp_path_factory):
    """Start TensorBoard over all runs; return its address once it has read them."""
    log = tmp_path_factory.mktemp("tensorboard") / "log"
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(next(iter(runs.values())).parent),
        "--host",
        "127.0.0.1",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", "0", "--load_fast=false", "--reload_interval=1"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        end, wanted = (
            time.monotonic() + START_SECS,
            {f"{name}/events/{split}" for name in runs for split in ("train", "eval")},
        )
        address, read = None, set()
        while not wanted <= read:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, f"has read {read}\n{log.read_text()}"
            if address := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
                read = {
                    run
                    for run, tags in fetched(f"{address[0]}/data/plugin/scalars/tags").items()
                    if "loss" in tags
                }
            time.sleep(0.1)
        yield address[0]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def chromium():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=PAGE_MSECS
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, tensorboard, tmp_path):
    """Yield a page, save a screenshot, and check that it contacted only TensorBoard."""
    opened = chromium.new_page(viewport={"width": 1600, "height": 1000}, base_url=tensorboard)
    opened.set_default_timeout(PAGE_MSECS)
    asked = []
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    opened.screenshot(path=tmp_path / "page.png")
    opened.close()
    assert [url for url in asked if not url.startswith((tensorboard, "data:", "blob:"))] == []


def test_time_series_tab_has_every_tag_and_the_last_values(page, runs):
    page.goto("/#timeseries")
    tags = set().union(
        *(last(path, split) for path in runs.values() for split in ("train", "test"))
    ) - {"step", "split"}
    groups = page.locator("metrics-card-groups .group-title")
    groups.filter(has_text=re.compile(r"^\s*loss\s*$")).wait_for()
    assert tags <= set(groups.evaluate_all(TEXTS))
    for tag in ("accuracy", "loss"):
        page.locator("metrics-tag-filter-component input").fill(f"^{tag}$")
        # The page hides its cards while it shows those that pass a filter.
        named = page.locator(f"tb-truncated-path[title='{tag}']")
        card = page.locator("card-view:visible", has=named)
        rows = card.locator("tb-data-table-content-row")
        api.expect(rows).to_have_count(2 * len(runs), timeout=PAGE_MSECS)
        for name in runs:  # a row is there before its text is
            for folder in ("train", "eval"):
                text = f"{name}/events/{folder}"
                api.expect(rows.filter(has_text=text)).to_have_count(1, timeout=PAGE_MSECS)
        cells = rows.evaluate_all(
            f"rows => rows.map(row => ({TEXTS})"
            "(row.querySelectorAll('tb-data-table-content-cell')))"
        )
        shown = {run: (float(value), int(step)) for _, run, _, value, step, *_ in cells}
        for name, path in runs.items():
            for folder, split in (("train", "train"), ("eval", "test")):
                assert shown[f"{name}/events/{folder}"] == (
                    pytest.approx(last(path, split)[tag], rel=1e-3),
                    STEPS,
                )


def test_images_tab_loads_the_training_images(page, seen):
    page.goto("/#images")
    loader = page.locator("tf-image-loader").first
    loader.wait_for()
    api.expect(loader).to_contain_text("inputs")
    api.expect(loader).to_contain_text(f"{seen}/events/train")
    picture = loader.locator("img").first
    picture.wait_for()
    page.wait_for_function(
        "image => image.complete && image.naturalWidth > 0", arg=picture.element_handle()
    )
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [8, 8]


def test_graphs_tab_shows_the_model(page):
    page.goto("/#graphs")
    model, nodes = (
        page.locator("tf-graph-scene g.node[data-name='cnn']"),
        page.locator("tf-graph-scene g.node"),
    )
    model.wait_for()
    names = "nodes => nodes.map(node => node.getAttribute('data-name'))"
    assert {"cnn", "features"} <= set(nodes.evaluate_all(names))
    model.dblclick()
    page.locator("tf-graph-scene g.node[data-name='cnn/block0_conv0']").wait_for()
    assert {"cnn/block0_pool", "cnn/logits"} <= set(nodes.evaluate_all(names))


def test_hparams_tab_has_a_row_for_each_run(page, runs, seen):
    page.goto("/#hparams")
    cells = page.locator("vaadin-grid-cell-content")
    for name in runs:
        cells.filter(has_text=name).wait_for()
    # The cells come row by row: that of the titles, and one for each run.
    titles, rows, row = [], {}, []
    for text in cells.evaluate_all(TEXTS):
        if text == "Trial ID":
            row = titles
        elif text in runs:
            row = rows[text] = []
        row.append(text)
    rate, accuracy = titles.index("optimizer.learning_rate"), titles.index("eval.accuracy")
    assert rows.keys() == runs.keys()
    for name, path in runs.items():
        wanted = (last(path, "train")["learning_rate"], last(path, "test")["accuracy"])
        assert (float(rows[name][rate]), float(rows[name][accuracy])) == pytest.approx(
            wanted, rel=1e-3
        )
    assert sorted(float(row[rate]) for name, row in rows.items() if name != seen) == sorted(
        map(float, RATES)
    )
