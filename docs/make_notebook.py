"""Executes the notebook of docs/examples in a copy of the checkout, and saves it with its outputs.

Usage: python -m docs.make_notebook
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.support.doc_pages import ROOT, copy_checkout

NOTEBOOK = ROOT / "docs" / "examples" / "train_in_a_notebook.ipynb"


def main() -> None:
    """Execute the notebook, and save it."""
    notebook = nbformat.read(NOTEBOOK, 4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": str(copy_checkout(Path(folder)))}}
        NotebookClient(notebook, timeout=600, coalesce_streams=True, resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it was executed
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
