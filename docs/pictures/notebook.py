"""Photographs a cell of a notebook, the first of docs/how-to/notebook.md: `notebook.png`."""

from __future__ import annotations

import contextlib
import html
import io
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from docs.pictures.support import ROOT, Picture, browser_page

STYLE = """
body {margin: 16px; font: 14px "Noto Sans", Helvetica, Arial, sans-serif}
pre {font: 13px "DejaVu Sans Mono", monospace; white-space: pre-wrap; margin: 0 0 12px}
.code {padding: 8px; border: 1px solid #d1d9e0; background: #f6f8fa}
"""


def pictures() -> Iterator[Picture]:
    """Run the cell in an empty directory, and show what a notebook does."""
    page_text = (ROOT / "docs" / "how-to" / "notebook.md").read_text()
    cell = re.findall(r"```python\n(.*?)```", page_text, re.DOTALL)[0]
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(cell, names)
        shown = names["trained"]._repr_html_()
    lines = html.escape(printed.getvalue().replace(f"{ROOT}/", ""))  # as in a checkout
    code = html.escape(f"{cell}trained")
    body = f"<style>{STYLE}</style><pre class=code>{code}</pre><pre>{lines}</pre>{shown}"
    with browser_page(900, 100) as page:
        page.set_content(body)
        yield Picture("notebook.png", page.screenshot(full_page=True), page.inner_text("body"))
