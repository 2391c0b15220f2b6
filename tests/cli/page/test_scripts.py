"""Functions of the page's scripts, run by Node without a browser."""

import json
import shutil
import subprocess

import pytest

from tests.support.command_line import ROOT

TEMPLATES = ROOT / "trainer/cli/page/templates"
CHART = """
const line = (split, steps, y) => ({owner: "a", split, x: steps, steps, y});
const chart = Object.assign(Object.create(Chart.prototype), {
  lines: [line("train", [10, 20, 30], [0.4, 0.6, 0.975]), line("test", [17, 34], [0.5, 0.9])],
  view: {smooth: 0.6}, xRange: [0, 40], yRange: [0, 1], width: 900, height: 300,
});
"""


def evaluate(expression, before=""):
    """Return the value of an expression after the scripts were read."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no Node is installed")
    names = ("text.js", "chart.js", "board.js", "runs.js")
    scripts = "\n".join((TEMPLATES / name).read_text() for name in names)
    program = f"{scripts}\n{before}\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run(
        [node, "-"], input=program, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_tooltip_has_the_values_that_were_measured_each_with_its_step():
    points = evaluate("chart.pointsAt(30.4)", CHART)
    assert [(point["step"], point["value"]) for point in points] == [(30, 0.975), (34, 0.9)]
    assert all(point["smooth"] < point["value"] for point in points)
    notes = evaluate("chart.pointsAt(30.4).map((point) => noteOf(point, 30))", CHART)
    assert notes == ["smoothed 0.7546", "step 34, smoothed 0.7500"]
    plain = "(chart.view.smooth = 0, chart.pointsAt(30.4).map((point) => noteOf(point, 30)))"
    assert evaluate(plain, CHART) == ["", "step 34"]


def test_runs_are_sorted_by_the_numbers_in_their_names():
    ordered = ["lr=0.001 a", "lr=0.01 a", "lr=2e-2 a", "lr=0.1", "lr=0.1 a", "lr=10", "model=cnn"]
    words = json.dumps(sorted(ordered))
    assert evaluate(f"{words}.reverse().sort(compareTexts)") == ordered
