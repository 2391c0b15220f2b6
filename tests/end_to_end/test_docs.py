"""The documentation: what it shows is run, what it names exists."""

import json
import os
import re
import sys

import pytest
import yaml

from docs import hooks
from docs.pictures import charts
from tests.support.choices import keys
from tests.support.doc_links import broken_links
from tests.support.doc_pages import ROOT, Page, copy_checkout
from tests.support.fork_server import fork_server_of
from tests.support.processes import run_program
from trainer.cli.command_table import COMMANDS
from trainer.cli.compose import compose
from trainer.config.schema import Experiment, Fault

PAGES = [Page(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
RUN = [page for page in PAGES if page.commands]
LONG = {
    f"docs/{name}.md"
    for name in (
        "concepts", "examples/gallery/README", "examples/own_project/README",
        "from-custom-loop", "from-hydra", "from-lightning", "from-model-fit",
        "how-to/cluster", "how-to/data", "how-to/dataset", "how-to/failures",
        "how-to/fine-tune", "how-to/fit", "how-to/gan", "how-to/keras-program",
        "how-to/keras3", "how-to/labels",
        "how-to/language-model", "how-to/metrics", "how-to/model",
        "how-to/model-parallelism", "how-to/report", "how-to/resume", "how-to/search", "how-to/see",
        "how-to/segmentation", "how-to/several-models", "how-to/slow-workers", "how-to/sweep",
        "reference/errors", "same-bits", "strategies", "troubleshooting",
        "tutorial/2-kill", "tutorial/3-your-own", "tutorial/4-sweep", "tutorial/5-devices",
    )
} | {"README.md"}  # fmt: skip
"""Pages whose commands take more than five seconds; other tests hold what they do."""
OTHER_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
DATA = ("mnist.npz", "cifar-10-batches-py")


def name(page):
    return str(page.path.relative_to(ROOT))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout, which has no history that runs would record."""
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def server(checkout):
    """A fork server for the commands of all pages that use the copy."""
    with fork_server_of(checkout) as variables:
        yield variables


def marks(page):
    if not page.trains:
        return []
    return [pytest.mark.long if name(page) in LONG else pytest.mark.slow]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page), id=name(page)) for page in RUN]
)
def test_page_runs_as_shown(page, tmp_path, checkout, server):
    folder = page.directory(tmp_path, checkout)
    if page.adds_code:
        with fork_server_of(folder) as own:
            page.run(folder, folder, own)
    else:
        page.run(folder, checkout, server)


@pytest.mark.parametrize("page", [page for page in PAGES if page.commands], ids=name)
def test_commands_that_are_not_run_compose(page, tmp_path, monkeypatch):
    """Without `resume`: the runs do not exist."""
    folder = page.path.parent if page.is_example else tmp_path
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for file in DATA:
        (tmp_path / file).touch()
    for command in page.commands:
        if command.arguments and (page not in RUN or not command.is_run):
            compose(
                [
                    item.partition(",")[0]
                    for item in command.arguments
                    if "=" in item and not item.startswith(("-", "resume=", "hydra"))
                ]
            )


REFERENCE = ROOT / "docs" / "reference" / "configuration"


def reference():
    """The lines of all pages of the configuration reference that describe options."""
    pages = sorted({*REFERENCE.glob("*.md")} - {REFERENCE / "experiment.md"})
    return [line for page in pages for line in page.read_text().splitlines()]


def test_reference_has_every_key_and_every_choice():
    rows = {line.split("`")[1]: line for line in reference() if line.startswith("| `")}
    for key in [*keys(Experiment()), *keys(Fault(), "fault.<name>.")]:
        assert key in rows, key
    titles = {line.strip("#` ") for line in reference() if line.startswith("#")}
    recipes = {*(ROOT / "conf" / "experiment").glob("*.yaml")}
    files = {*(ROOT / "conf").glob("*/*.yaml")} - recipes
    choices = {f"{file.parent.name}={file.stem}" for file in files}
    assert len(choices) > 40
    assert choices - titles == set()
    listed = (REFERENCE / "experiment.md").read_text()
    assert [file.stem for file in recipes if f"| `{file.stem}` |" not in listed] == []
    assert rows["optimizer.momentum"].startswith(
        "| `optimizer.momentum` | `0.9` | float, >= 0, &lt; 1 |"
    )
    assert rows["model.width"].endswith("| no |")
    assert rows["augment.crop"].startswith("| `augment.crop` | `0` | int, >= 0 |")
    assert [
        row
        for row in rows.values()
        if len(row.replace("\\|", "").split("|")) != 7 or row.split("|")[-3] == "  "
    ] == []


def test_generated_pages_are_as_committed():
    """Its imports are checked too: `make docs` must stay quick."""
    code = (
        "import sys; sys.path.insert(0, 'docs'); import generate, json\n"
        "print(json.dumps(generate.generate()))\n"
        "assert not {'tensorflow', 'numpy', 'tf_keras'} & {*sys.modules}"
    )
    pages = json.loads(run_program(sys.executable, "-c", code, cwd=ROOT))
    differ = [path for path in pages if pages[path] != _text(ROOT / "docs" / path)]
    assert differ == [], "run python docs/generate.py"
    files = REFERENCE.rglob("*.md")
    assert {str(file.relative_to(ROOT / "docs")) for file in files} - {*pages} == set()


def _text(path):
    return path.read_text() if path.exists() else None


def test_command_line_reference_lists_every_command():
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    assert [command for command in COMMANDS if f"| `python train.py {command} " not in page] == []


def test_every_diagram_has_its_pictures():
    texts = [page.path.read_text() for page in PAGES if page.path != ROOT / "README.md"]
    diagrams = [match["text"] for text in texts for match in hooks.DIAGRAM.finditer(text)]
    names = {hooks.diagram_name(text, scheme) for text in diagrams for scheme in hooks.SCHEMES}
    files = {file.name for file in (ROOT / "docs" / "images" / "diagrams").iterdir()}
    assert files == names, "run python -m docs.pictures diagrams"


def test_charts_are_of_the_records():
    for picture in charts.pictures():
        text = _text(ROOT / "docs" / "images" / picture.name)
        assert picture.content == text, "run python -m docs.pictures charts"


def test_search_words_belong_to_pages():
    words = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["extra"]["search_words"]
    assert [page for page in words if not (ROOT / "docs" / page).exists()] == []


def test_links_lead_somewhere():
    """As on GitHub; of those to other sites only that they are addresses."""
    paths = [*(page.path for page in PAGES), *(ROOT / name for name in OTHER_PAGES)]
    assert {str(path): links for path in paths if (links := broken_links(path))} == {}


@pytest.mark.slow
def test_site_builds_without_a_broken_link_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run_program(*command, cwd=ROOT, env=variables)
    pages = [path.read_text() for path in tmp_path.rglob("*.html")]
    fetched = re.compile(r'<link [^>]*href="\w+://|src="\w+://')
    assert [match[0] for text in pages for match in fetched.finditer(text)] == []
    page = (tmp_path / "how-to" / "sweep.html").read_text()
    assert re.search(r'<div data-copy="python train.py -m [^"<$]*" class="language-console', page)
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    assert [entry for entry in index if "OOM" in entry.get("tags", ())]
    assert [entry for entry in index if "adr/0" in entry["location"]] == []
