"""The README: its model trains, and its pictures show what holds."""

import pytest

from tests.support.doc_pages import ROOT, File, Page, copy_checkout
from tests.support.fork_server import fork_server_of

README = ROOT / "README.md"


@pytest.mark.slow
def test_own_model_trains(tmp_path):
    page = Page(README)
    page.steps = [step for step in page.steps if isinstance(step, File) or "wide" in step.text]
    assert len(page.steps) == 3
    folder = page.directory(tmp_path, copy_checkout(tmp_path))
    with fork_server_of(folder) as server:
        page.run(folder, folder, server)
