"""Photographs the README as GitHub shows it, and pages of the site: `readme.png`, `site-*.png`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docs.pictures.support import ROOT, Picture, browser_page

PAGES = {
    "readme": "readme",
    "site-landing": "index",
    "site-tutorial": "tutorial/index",
    "site-guide": "how-to/sweep",
}
STYLE = """
body {margin: 32px; font: 16px/1.5 "Noto Sans", Helvetica, Arial, sans-serif}
h1, h2 {border-bottom: 1px solid #d1d9e0; padding-bottom: .3em} img {max-width: 100%}
pre, code {font: 85% "DejaVu Sans Mono", monospace; background: #818b981f; border-radius: 6px}
code {padding: .2em .4em} pre {padding: 16px} pre code {background: none; padding: 0}
table {border-collapse: collapse} td, th {border: 1px solid #d1d9e0; padding: 6px 13px}
a {color: #0969da; text-decoration: none}
@media (prefers-color-scheme: dark) {body {color: #f0f6fc; background: #0d1117}
  a {color: #4493f8} h1, h2, td, th {border-color: #3d444d}}
"""


def readme() -> str:
    """Return the README as a page that looks much like GitHub's."""
    import markdown

    extensions = ["tables", "pymdownx.superfences"]
    text = re.sub('(?m)^(```.*) title=".*"$', r"\1", (ROOT / "README.md").read_text())
    body = markdown.markdown(text, extensions=extensions)
    return f'<meta charset="utf-8"><base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{body}'


def pictures() -> Iterator[Picture]:
    """Photograph all, in the light and in the dark scheme."""
    with tempfile.TemporaryDirectory() as scratch:
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", scratch]
        subprocess.run(build, cwd=ROOT, check=True, timeout=300)
        Path(scratch, "readme.html").write_text(readme())
        for scheme in ("light", "dark"):
            for name, path in PAGES.items():
                is_site = name.startswith("site")
                size = (1440, 900) if is_site else (900, 1100)
                with browser_page(*size, dark=scheme == "dark") as page:
                    page.goto(Path(scratch, f"{path}.html").as_uri())
                    page.wait_for_timeout(500 if is_site else 8000)  # until a figure has moved
                    picture = page.screenshot(full_page=not is_site)
                    yield Picture(f"{name}-{scheme}.png", picture)
