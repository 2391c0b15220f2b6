"""What the list of the page takes of runs: summaries that are read once."""

import pytest

from tests.support.fake_runs import make_runs
from trainer.cli.page import payload
from trainer.cli.page.payload import Summaries, finite_only


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six runs: done, done, failed, done, done, stopped."""
    return make_runs(tmp_path_factory.mktemp("runs"), 6, 40)


def test_only_runs_that_have_changed_are_read_again(tmp_path, monkeypatch):
    runs = make_runs(tmp_path, 2, 20)
    read = []
    summarize = payload.summarize
    monkeypatch.setattr(payload, "summarize", lambda path: read.append(path) or summarize(path))
    summaries = Summaries("x", lambda: {run.path.name: run.path for run in runs})
    assert summaries.payload()["runs"] == summaries.payload()["runs"]
    assert read == [run.path for run in runs]
    runs[1].train(20)
    summaries.payload()
    assert read[2:] == [runs[1].path]
    del runs[0]
    assert len(summaries.payload()["runs"]) == 1


def test_damaged_or_missing_run_has_a_summary(tmp_path):
    (run,) = make_runs(tmp_path, 1, 20)
    (run.path / "run.json").write_text('{"lineage": 3}')
    (tmp_path / "empty").mkdir()
    listing = {"a": run.path, "b": tmp_path / "empty"}
    damaged, empty = Summaries("x", lambda: listing).payload()["runs"]
    assert damaged["id"] == "a"
    assert (empty["state"], empty["best"], empty["value"]) == ("waiting", None, None)


def test_values_for_json_are_finite():
    value = {"a": [float("nan"), (1.5, float("inf"))], 3: None}
    assert finite_only(value) == {"a": [None, [1.5, None]], "3": None}
