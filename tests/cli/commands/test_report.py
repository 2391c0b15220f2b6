"""`python train.py report [run ...]`: one page about runs, folders of runs, and sweeps."""

import json
import re

import pytest

from tests.support.command_line import run_here


@pytest.fixture
def sweep(make, tmp_path):
    """A sweep of which one run is not there; gives its folder and the runs that are."""
    runs = [make("seed=1"), make("seed=2")]
    points = [
        {"varied": {"seed": str(seed)}, "run": run}
        for seed, run in ((2, runs[1]), (3, "runs/none"), (1, runs[0]))
    ]
    folder = tmp_path / "runs" / "sweeps" / "seeds"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(
        json.dumps({"metric": "loss", "mode": "min", "points": points})
    )
    return "runs/sweeps/seeds", runs


def data_of(page):
    """Return what a page holds: its data, in which each run has curves and details."""
    (text,) = re.findall(r'id="data">(.*?)</script>', page.read_text())
    data = json.loads(text)
    ids = [run["id"] for run in data["runs"]]
    assert list(data["series"]) == list(data["details"]) == ids
    return data


def test_sweep_stands_for_its_runs_best_first_also_when_it_was_moved(sweep, tmp_path):
    folder, (first, second) = sweep
    assert run_here("report", folder).out == "2 runs: report.html\n"
    runs = [(run["id"], run["label"]) for run in data_of(tmp_path / "report.html")["runs"]]
    assert runs == [(second, "seed=2"), (first, "seed=1")]
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert run_here("report", "moved/sweeps/seeds").out == "2 runs: report.html\n"
