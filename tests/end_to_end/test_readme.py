"""The README: its model trains, and its pictures show what holds."""

import re
import tomllib

import pytest

from docs.pictures import step_time
from tests.support.doc_pages import ROOT, File, Page, copy_checkout
from tests.support.fork_server import fork_server_of

README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"


@pytest.mark.slow
def test_own_model_trains(tmp_path):
    page = Page(README)
    page.steps = [step for step in page.steps if isinstance(step, File) or "wide" in step.text]
    assert len(page.steps) == 3
    folder = page.directory(tmp_path, copy_checkout(tmp_path))
    with fork_server_of(folder) as server:
        page.run(folder, folder, server)


def test_chart_is_that_of_the_table():
    assert (IMAGES / "step-time.svg").read_text() == step_time.chart()


def test_badges_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = re.findall(r"3\.(\d+)", project["requires-python"])
    tensorflow = re.search(r"tensorflow>=([\d.]+)", " ".join(project["dependencies"]))
    title = (
        f"Python 3.{python[0]} to 3.{int(python[1]) - 1}, TensorFlow {tensorflow[1]}, "
        f"{project['license']}"
    )
    assert f"![{title}](docs/images/badges.svg)" in README.read_text()
    assert title in (IMAGES / "badges.svg").read_text()


def test_pictures_are_shown_and_small():
    pages = "".join(page.read_text() for page in (README, *(ROOT / "docs").rglob("*.md")))
    for file in IMAGES.glob("*.*"):
        assert f"images/{file.name}" in pages, file
        assert file.stat().st_size < 200_000, file
