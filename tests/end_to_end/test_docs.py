"""The documentation: what it shows is run, what it names exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.doc_pages import ROOT, Page, copy_checkout
from tests.support.fork_server import fork_server_of
from trainer.cli.command_table import COMMANDS
from trainer.cli.compose import compose
from trainer.config.schema import GROUPS, Experiment, Fault

PAGES = [Page(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
RUN = [page for page in PAGES if page.commands]
LONG = {
    f"docs/{name}.md"
    for name in (
        "examples/gallery/README",
        "from-custom-loop", "from-hydra", "from-lightning", "from-model-fit",
        "how-to/contrastive", "how-to/data", "how-to/dataset", "how-to/failures",
        "how-to/fine-tune", "how-to/fit", "how-to/gan", "how-to/keras-program",
        "how-to/keras3", "how-to/labels",
        "how-to/language-model", "how-to/measure-scale", "how-to/metrics", "how-to/model",
        "how-to/model-parallelism", "how-to/report", "how-to/resume", "how-to/see",
        "how-to/segmentation", "how-to/several-models", "how-to/slow-workers", "how-to/sweep",
        "same-bits", "strategies",
    )
} | {"README.md"}  # fmt: skip
"""Pages whose commands take more than ten seconds; other tests hold what they do."""
DATA = ("mnist.npz", "cifar-10-batches-py")


def name(page: Page) -> str:
    return str(page.path.relative_to(ROOT))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, which has no history that runs would record."""
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def server(checkout: Path) -> Iterator[dict[str, str]]:
    """A fork server for the commands of all pages that use the copy."""
    with fork_server_of(checkout) as variables:
        yield variables


def marks(page: Page) -> list[pytest.MarkDecorator]:
    if not page.trains:
        return []
    return [pytest.mark.long if name(page) in LONG else pytest.mark.slow]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page), id=name(page)) for page in RUN]
)
def test_page_runs_as_shown(
    page: Page, tmp_path: Path, checkout: Path, server: dict[str, str]
) -> None:
    folder = page.directory(tmp_path, checkout)
    if page.adds_code:
        with fork_server_of(folder) as own:
            page.run(folder, folder, own)
    else:
        page.run(folder, checkout, server)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_that_are_not_run_compose(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
                    if not item.startswith(("-m", "resume=", "hydra"))
                ]
            )


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys(schema: Any, path: str = "") -> list[str]:
    names = []
    for item in fields(schema):
        value = getattr(schema, item.name)
        if is_dataclass(value):
            names += keys(value, f"{path}{item.name}.")
        elif item.name not in (*GROUPS, "choices"):
            names.append(f"{path}{item.name}")
    return names


@pytest.mark.slow
def test_reference_has_every_key_and_every_choice(hooks: ModuleType) -> None:
    lines = hooks.configuration().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    for key in [*keys(Experiment()), *keys(Fault(), "fault.<name>.")]:
        assert key in rows, key
    choices = [(group, file) for group in GROUPS for file in (ROOT / "conf" / group).glob("*.yaml")]
    assert len(choices) > 40
    for group, file in choices:
        assert any(line.startswith(f"#### `{group}={file.stem}`") for line in lines), file
    assert rows["optimizer.momentum"].startswith(
        "| `optimizer.momentum` | `0.9` | float, >= 0, &lt; 1 | share of the last update"
    )
    assert rows["model.width"].endswith("| no |")
    assert rows["augment.crop"].startswith("| `augment.crop` | `0` | int, >= 0 |")
    assert [
        row
        for row in rows.values()
        if len(row.replace("\\|", "").split("|")) != 7 or row.split("|")[-3] == "  "
    ] == []


def test_reference_generator_imports_nothing_heavy() -> None:
    outcome = subprocess.run(
        [sys.executable, "-X", "importtime", ROOT / "docs" / "hooks.py"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert outcome.returncode == 0
    assert not re.search(r"\| +(tensorflow|numpy|tf_keras)$", outcome.stderr, re.MULTILINE)


def test_command_line_reference_lists_every_command() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    assert [command for command in COMMANDS if f"| `python train.py {command} " not in page] == []


def test_decisions_page_lists_every_decision(hooks: ModuleType) -> None:
    for file in (ROOT / "docs" / "adr").glob("0*.md"):
        assert f"({file.name})" in hooks.decisions()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"]
)
def test_links_exist(page: str) -> None:
    """MkDocs checks those within docs/."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert "://" in target or (ROOT / page).parent.joinpath(target).exists(), target
