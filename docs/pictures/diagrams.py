"""Draws the Mermaid diagrams of the pages: `docs/images/diagrams/`, for both color schemes.

GitHub draws such a block itself. The site shows these pictures instead, and so fetches nothing.
Mermaid comes from npm (`apt-get install npm`), in a version that is fixed here.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docs.hooks import DIAGRAM, SCHEMES, diagram_name
from docs.pictures.support import IMAGES, ROOT, Picture, browser_page

MERMAID = "mermaid@11.17.2"
TIMEOUT_SECS = 300
FOLDER = IMAGES / "diagrams"

_DRAW = """async ([text, theme]) => {
    const themeVariables = {clusterBkg: "transparent"};
    const fontFamily = "Arial, Helvetica, sans-serif";
    mermaid.initialize({startOnLoad: false, theme, themeVariables, fontFamily});
    const place = document.createElement("div");
    place.innerHTML = (await mermaid.render("diagram", text)).svg;
    return new XMLSerializer().serializeToString(place.firstChild);  // a file of SVG must be XML
}"""
# Where a reader's font is wider, a label grows beyond its box, and is not cut off.
_STYLE = "<style>foreignObject {overflow: visible}</style></svg>"


def library(directory: Path) -> str:
    """Download Mermaid, and return its code."""
    command = ["npm", "pack", MERMAID, "--silent"]
    subprocess.run(command, cwd=directory, check=True, timeout=TIMEOUT_SECS)
    with tarfile.open(next(directory.glob("mermaid-*.tgz"))) as archive:
        file = archive.extractfile("package/dist/mermaid.min.js")
        assert file
        return file.read().decode()


def pictures() -> Iterator[Picture]:
    """Draw what is missing, and remove what no page has any more."""
    texts = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    diagrams = {
        diagram_name(match["text"], scheme): (match["text"], theme)
        for text in texts
        for match in DIAGRAM.finditer(text)
        for scheme, theme in SCHEMES.items()
    }
    FOLDER.mkdir(exist_ok=True)
    names = {file.name for file in FOLDER.iterdir()}
    for name in names - diagrams.keys():
        (FOLDER / name).unlink()
    with tempfile.TemporaryDirectory() as scratch, browser_page(1200, 800) as page:
        page.add_script_tag(content=library(Path(scratch)))
        for name in diagrams.keys() - names:
            picture = page.evaluate(_DRAW, diagrams[name])
            yield Picture(f"diagrams/{name}", picture.replace("</svg>", _STYLE) + "\n")
