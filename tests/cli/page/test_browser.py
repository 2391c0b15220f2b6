"""The page in a real browser: what it shows, how it is used, and that it never leaves its host."""

import json
import shutil

import pytest

from tests.support.fake_runs import FakeRun, config_text, make_runs
from tests.support.http_servers import running
from trainer.cli.page.page_server import PageServer, report_page
from trainer.cli.page.run_data import Summaries

pytestmark = pytest.mark.long

EVIL = '<img src=x onerror="document.title=1">'
TIMEOUT_MILLISECS = 20_000
STEPS = list(range(1, 101))


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """A function that opens an address; any error in the page fails the test."""
    problems, contexts = [], []

    def open_page(address, **options):
        contexts.append(browser.new_context(viewport={"width": 1440, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(TIMEOUT_MILLISECS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else 0)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [line for line in problems if "net::ERR_FAILED" not in line]


def summary(name, number, **values):
    """Return a run as the list has it; a larger number is a better run."""
    value = 0.5 + 0.1 * number
    return {
        "id": name, "name": name, "label": f"lr=0.{number}", "differs": {"lr": f"0.{number}"},
        "state": "done", "step": 100, "total_steps": 100, "secs": 60.0 * number, "eta_secs": None,
        "active": number, "metric": "accuracy", "value": value, "best": value,
        "modes": {"accuracy": "max"}, "command": "", "best_step": 90,
        "metrics": {"accuracy": value, "loss": 1.0}, "test": {}, "why": "",
        **values,
    }  # fmt: skip


def curves(number):
    """Return the curves of a run: a loss that falls to `number`, and its accuracy in tests."""
    loss = [number + 10 / step for step in STEPS]
    points = {"train/loss": loss, "test/loss": loss, "test/accuracy": [number / 10] * 100}
    points["train/train_secs"] = [0.5 * step for step in STEPS]
    columns = {key: {"step": STEPS, "value": value} for key, value in points.items()}
    return {"offset": "0", "points": columns}


DETAILS = {
    "directory": "runs/a", "problems": ["metrics.jsonl: 1 of 9 lines cannot be read"],
    "workers": [{"name": EVIL, "host": "node-1", "phase": "train", "step": 90, "quiet_secs": 61.0,
                 "end": ""}],
    "time": {"wall_secs": 100.0, "useful": 0.25, "attempts": 2, "sizes": "",
             "secs": {"steps": 25.0, "start": 75.0}},
    "marks": [{"step": 50, "kind": "restart", "text": "restarted from step 50"}],
    "confusion": {"step": 90, "classes": ["cat", EVIL], "matrix": [[9, 1], [0, 10]]},
    "pictures": [], "texts": [{"name": "samples.txt", "text": EVIL}],
    "config": {"optimizer.learning_rate": "0.1"}, "commands": ["python train.py"],
    "changes": ["today"], "versions": {"tensorflow": "2.21"}, "devices": "CPU",
    "code": "commit abc", "machine": "node-1", "replicas": 1,
}  # fmt: skip


@pytest.fixture
def report(tmp_path):
    """The address of a report of three runs, the last with a hostile name."""
    names = ["alpha", "beta", EVIL]
    states = ["done", "running", "failed"]
    runs = [
        summary(name, number, state=state)
        for number, (name, state) in enumerate(zip(names, states, strict=True))
    ]
    runs[2] |= {"label": EVIL, "differs": {EVIL: EVIL}, "why": EVIL}
    series = {name: curves(number + 1) for number, name in enumerate(names)}
    series[EVIL]["points"][f"test/{EVIL}"] = series[EVIL]["points"]["test/loss"]
    return write_report(tmp_path, runs, series=series, details=dict.fromkeys(names, DETAILS))


def write_report(folder, runs, **data):
    """Write a report of runs, and return its address."""
    path = folder / "report.html"
    data = {"folder": "runs", "now": 0, "runs": runs, "series": {}, "details": {}, **data}
    path.write_text(report_page("Report", data), encoding="utf-8")
    return path.as_uri()


def wait_until(page, condition):
    """Wait until an expression is true; the page's policy keeps `wait_for_function` from it."""
    for _ in range(TIMEOUT_MILLISECS // 50):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


def labels(page):
    return page.locator("#list [data-id] b").all_inner_texts()


def hover(page, chart="loss", share=0.5):
    """Put the pointer at a fraction of the width of a chart; return what the tooltip shows."""
    box = page.locator(f'.chart[data-title="{chart}"] .plot').bounding_box()
    left, right = box["x"] + 50, box["x"] + box["width"] - 12  # of the axis
    page.mouse.move(left + share * (right - left), box["y"] + 0.5 * box["height"])
    page.locator("#tooltip").wait_for()
    return page.locator("#tooltip").inner_text()


def selected(page):
    return page.locator('#list [aria-selected="true"]').count()


def test_runs_are_filtered_and_sorted(opened, report):
    page = opened(report)
    assert labels(page) == ["lr=0.0", "lr=0.1", EVIL]
    page.keyboard.press("/")
    page.keyboard.type("state:running")
    assert labels(page) == ["lr=0.1"]
    page.keyboard.press("Escape")
    page.fill("#filter", "alpha")
    assert labels(page) == ["lr=0.0"]
    found = {"lr>0.05": ["lr=0.1"], "lr<=1e-1 -beta": ["lr=0.0"], "-failed": ["lr=0.0", "lr=0.1"],
             "^al|beta": ["lr=0.0", "lr=0.1"], "accuracy>=0.7": [EVIL]}  # fmt: skip
    for text, shown in found.items():
        page.fill("#filter", text)
        assert labels(page) == shown, text
    page.fill("#filter", "nothing")
    assert "None of 3 runs matches" in page.inner_text("#list")
    page.fill("#filter", "")
    page.click("#list button.best")
    assert labels(page) == [EVIL, "lr=0.1", "lr=0.0"]
    assert page.get_attribute("#list button.best", "aria-sort") == "descending"
    page.click("#list button.best")
    assert labels(page) == ["lr=0.0", "lr=0.1", EVIL]
    page.click("#counts [data-state=failed]")
    assert labels(page) == [EVIL]
    names = ["lr=0.001 a", "lr=0.01 a", "lr=2e-2 a", "lr=0.1", "lr=0.1 a", "lr=10", "model=cnn"]
    assert page.evaluate(f"{sorted(names)}.reverse().sort(compareTexts)") == names


def test_crosshair_shows_the_values_of_all_runs_in_all_charts(opened, report):
    page = opened(report)
    text = hover(page)
    for words in ("step 5", "lr=0.0", "lr=0.1", "test", "train", "2.2"):
        assert words in text
    assert page.inner_text('.chart[data-title="accuracy"] .readout').startswith("test 0.")
    page.mouse.move(5, 5)
    page.locator("#tooltip").wait_for(state="hidden")


def test_runs_and_splits_are_toggled(opened, report):
    page = opened(report)
    page.click("[data-id=alpha]")
    assert selected(page) == 2
    assert "lr=0.0" not in hover(page)
    page.dblclick("[data-id=alpha]")
    assert selected(page) == 1
    page.click("#all")
    page.click("[data-run=beta]")
    assert "lr=0.1" not in hover(page)
    assert selected(page) == 3  # hidden, and still selected
    page.click("[data-run=beta]")
    assert "lr=0.1" in hover(page)
    page.click('[data-split="train"]')
    assert "train" not in hover(page)
    page.click("#none")
    assert "Select runs" in page.inner_text("#charts")


def test_zoom_log_time_and_smoothing(opened, report):
    page = opened(report)
    box = page.locator('.chart[data-title="loss"] .plot').bounding_box()
    middle = box["y"] + 0.5 * box["height"]
    page.mouse.move(box["x"] + 0.6 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], middle, steps=3)
    page.mouse.up()
    page.locator("#reset").wait_for()
    first = hover(page, "accuracy", share=0.1)  # of the other chart, which is zoomed too
    assert 55 < int(first.split()[1]) < 75
    page.dblclick('.chart[data-title="loss"] .plot')
    page.locator("#reset").wait_for(state="hidden")
    page.keyboard.press("t")
    assert ", 25 s" in hover(page).splitlines()[0]  # half a second a step
    page.keyboard.press("l")
    for button in ("#log", "#time"):
        assert page.get_attribute(button, "aria-pressed") == "true"
    means = page.evaluate("smoothed([2, 2, null, 2, 4], 0.5)")
    assert means[:4] == [2, 2, None, 2]
    assert 2 < means[4] < 4


def test_address_keeps_what_is_shown(opened, report):
    page = opened(report)
    page.dblclick("[data-id=beta]")
    page.fill("#filter", "lr=0.1")
    page.click("#seeds")
    page.click("#tab-compare")
    wait_until(page, "location.hash.includes('tab=compare')")
    page.reload()
    assert (selected(page), labels(page)) == (1, ["lr=0.1"])
    assert page.is_visible("#compare")
    assert page.get_attribute("#seeds", "aria-pressed") == "true"


def test_runs_that_differ_in_the_seed_alone_have_a_mean_and_a_band(opened, report):
    page = opened(report)
    page.evaluate("""page.store.runs.forEach((run, i) => {
      run.differs = {lr: '1', seed: String(i)}; run.label = `lr=1 seed=${i}`; })""")
    page.keyboard.press("m")
    assert page.locator("#legend [data-run]").all_inner_texts() == ["lr=1 (3 seeds)"]
    line = page.evaluate("page.board.panels.get('accuracy').lines[0]")
    assert [line[key][0] for key in ("low", "y", "high")] == pytest.approx([0.1, 0.2, 0.3])


def test_sweep_and_comparison_show_what_each_key_does(opened, report):
    page = opened(report)
    page.fill("#filter", "lr<1")
    page.click("#tab-sweep")
    assert page.locator("#sweep path").count() == page.locator("#sweep circle").count() == 2
    page.click("#sweep circle >> nth=1")
    assert "beta" in page.inner_text("#title")
    page.click("#tab-compare")
    page.click("#compare th button >> text=best")
    assert page.locator("#compare td:first-child").all_inner_texts() == [EVIL, "beta", "alpha"]
    assert page.locator("#compare td b").first.inner_text() == "0.7000"


def test_pareto_front_of_two_metrics_is_outlined(opened, tmp_path):
    pairs = {"a": (0.5, 0.5), "b": (0.75, 0.75), "c": (0.5, 0.25), "d": (0.75, 1.0)}
    runs = [
        summary(name, number, modes={"accuracy": "max", "loss": "min"},
                metrics={"accuracy": accuracy, "loss": loss})
        for number, (name, (accuracy, loss)) in enumerate(pairs.items())
    ]  # fmt: skip
    page = opened(write_report(tmp_path, runs))
    page.click("#tab-sweep")
    assert page.locator("#sweep [data-front=true]").count() == 0
    page.select_option("#sweep select", "loss")
    front = page.locator("#sweep [data-front=true]").evaluate_all(
        "marks => marks.map((mark) => mark.dataset.run)"
    )
    assert front == ["b", "c"]


def test_search_draws_how_points_continued_and_what_each_key_explains(opened, tmp_path):
    runs = [
        summary(f"run-{number}", number // 2, differs={"lr": str(number // 2), "fold": number % 2})
        for number in range(6)
    ]
    points = [
        {"label": "point 1", "origin": None, "ends": [[10, 0.5], [30, 0.75]]},
        {"label": "point 2, from point 1", "origin": [10, 0.5], "ends": [[30, 0.7]]},
    ]
    search = {"unit": "steps", "metric": "accuracy", "rungs": [], "points": points}
    page = opened(write_report(tmp_path, runs, searches=[search]))
    page.click("#tab-sweep")
    explained = page.locator("#sweep [data-part=importance] td").all_inner_texts()
    assert explained == ["lr", "100 %", "fold", "0 %"]
    chart = page.locator("#sweep [data-part=points-0]")
    assert chart.locator("circle").count() == 3
    branch = chart.locator("path[stroke-dasharray]").get_attribute("d")
    assert chart.locator("path").first.get_attribute("d").startswith(branch.partition("L")[0])


def test_chart_is_downloaded_as_a_table_and_a_picture(opened, report):
    page = opened(report)
    page.hover('.chart[data-title="accuracy"]')
    for kind, begin in (("CSV", b"run,split,step,value\n"), ("PNG", b"\x89PNG")):
        with page.expect_download() as download:
            page.click(f'.chart[data-title="accuracy"] button:text-is("{kind}")')
        assert download.value.path().read_bytes().startswith(begin)


def test_keyboard_moves_selects_and_opens(opened, report):
    page = opened(report)
    page.keyboard.press("j")
    page.keyboard.press("Space")
    assert page.get_attribute("[data-id=beta]", "aria-selected") == "false"
    page.keyboard.press("Enter")
    text = page.inner_text("#run")
    for words in ("lr=0.1", "quiet 1:01", "steps 25 %", "useful 25 %", "python train.py", "cat"):
        assert words in text
    page.keyboard.press("k")
    assert "alpha" in page.inner_text("#title")
    page.keyboard.press("Escape")
    assert page.is_visible("#curves")
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    assert "lr" in page.inner_text("#compare th:nth-child(2)")
    page.keyboard.press("a")
    assert selected(page) == 0


def test_report_sends_no_request_and_runs_nothing_of_its_data(opened, report):
    page = opened("about:blank", offline=True)
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report)
    for key in ("1", "2", "3", "4"):
        page.keyboard.press(key)
    page.keyboard.press("1")
    page.click(f'[data-id="{EVIL}"]'.replace(EVIL, json.dumps(EVIL)[1:-1]))
    assert requests == [report]
    assert page.locator("img").count() == 0
    assert page.title() == "Report · Steadfast"


@pytest.fixture
def live(tmp_path):
    """The address of a live page, and one of its runs."""
    make_runs(tmp_path, 2, 40)
    run = FakeRun(tmp_path, 2, 1000, config_text())
    run.train(40)
    listing = lambda: {path.name: path for path in sorted(tmp_path.iterdir())}  # noqa: E731
    with running(PageServer(0, Summaries("runs", listing))) as server:
        yield server.url, run


def test_live_page_follows_a_run_and_survives_its_server(opened, live):
    url, run = live
    page = opened(url)
    page.wait_for_selector(f"[data-id={run.path.name}]")
    wait_until(page, "page.store.series.size === 3")
    last = f"page.store.series.get('{run.path.name}').curves.get('train/loss').step.at(-1)"
    assert page.evaluate(last) == 400
    run.train(5)
    wait_until(page, f"{last} === 450")
    assert "step 450" in hover(page, share=1.0)
    page.route("**/api/**", lambda route: route.abort())
    page.wait_for_selector("#lost:visible")
    assert "has not answered" in page.inner_text("#lost")
    run.train(5)
    page.unroute("**/api/**")
    wait_until(page, f"{last} === 500")
    page.locator("#lost").wait_for(state="hidden")
