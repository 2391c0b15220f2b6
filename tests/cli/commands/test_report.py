"""`python train.py report [run ...]`: one page about runs, folders of runs, and sweeps."""

import json
import re

import pytest

from tests.support.command_line import run_here
from tests.support.object_stores import MemoryStore, upload_run, write_checkpoint
from trainer.store import remote_view


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


def test_runs_in_a_store_are_read_without_their_weights(make, tmp_path, monkeypatch):
    stores = {f"s3://bucket/runs{name}": MemoryStore() for name in ("", "/a", "/b")}
    monkeypatch.setattr(remote_view, "open_store", lambda place: stores[place])
    for name in ("a", "b"):
        run = tmp_path / make(f"name={name}")
        line = {"step": 2, "split": "test", "loss": 0.125}
        (run / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
        write_checkpoint(run, 2)
        store = stores[f"s3://bucket/runs/{name}"]
        upload_run(store, run, "node:1:x").release()
        stores["s3://bucket/runs"].objects |= {
            f"{name}/{key}": value for key, value in store.objects.items()
        }
    done = run_here("report", "s3://bucket/runs/", "s3://bucket/runs/b")
    assert (done.code, done.out, done.err) == (0, "2 runs: report.html\n", "")
    data = data_of(tmp_path / "report.html")
    assert data["folder"] == "s3://bucket/runs"
    assert [run["state"] for run in data["runs"]] == ["stopped", "stopped"]
    address = "s3://bucket/runs/b"
    assert data["series"][address]["points"]["test/loss"]["value"] == [0.125]
    assert data["details"][address]["directory"] == address
    assert [details["problems"] for details in data["details"].values()] == [[], []]
    assert run_here("report", "s3://bucket/runs/b").out == "1 run: report.html\n"
