import json
import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT


@pytest.mark.long
def test_contenders_are_killed_and_compared(tmp_path):
    arguments = "--quick --processes 1 --rounds 1 --every 3 --out results.json --contenders"
    command = [sys.executable, "-m", "benchmarks.fire", *arguments.split(), "steadfast", "fit"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=600, check=True)
    rows = json.loads((tmp_path / "results.json").read_text())["fire"]
    assert [row["contender"] for row in rows] == ["steadfast", "steadfast", "fit", "fit"]
    for row in (rows[0], rows[2]):
        assert row["kills"] == row["misplaced_examples"] == row["largest_difference"] == 0
        assert row["computed_steps"] == row["steps"]
    assert rows[1]["kills"] > 0
    assert rows[1]["misplaced_examples"] == rows[1]["largest_difference"] == 0
