"""Functions of the page's scripts, run by Node without a browser."""

import json
import shutil
import subprocess

import pytest

from tests.support.command_line import ROOT

TEMPLATES = ROOT / "trainer/cli/page/templates"


def evaluate(expression):
    """Return the value of an expression after the scripts were read."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no Node is installed")
    names = ("text.js", "chart.js", "board.js", "runs.js")
    scripts = "\n".join((TEMPLATES / name).read_text() for name in names)
    program = f"{scripts}\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run(
        [node, "-"], input=program, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_runs_are_sorted_by_the_numbers_in_their_names():
    ordered = ["lr=0.001 a", "lr=0.01 a", "lr=2e-2 a", "lr=0.1", "lr=0.1 a", "lr=10", "model=cnn"]
    words = json.dumps(sorted(ordered))
    assert evaluate(f"{words}.reverse().sort(compareTexts)") == ordered
