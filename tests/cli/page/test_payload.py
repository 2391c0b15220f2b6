"""What the page takes of runs: summaries that are read once, and details of whole and torn runs."""

import json

import pytest

from tests.support.fake_runs import make_runs
from trainer.cli.page import payload
from trainer.cli.page.payload import Summaries, details, finite_only


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six runs: done, done, failed, done, done, stopped."""
    return make_runs(tmp_path_factory.mktemp("runs"), 6, 40)


def test_summaries_tell_runs_apart(runs):
    content = Summaries("runs", lambda: {run.path.name: run.path for run in runs}).payload()
    assert content["folder"] == "runs"
    first, _, failed, *_, stopped = content["runs"]
    assert first["id"] == first["name"] == runs[0].path.name
    assert (first["differs"]["model"], first["differs"]["lr"]) == ("cnn", "0.1")
    assert "lr=0.1" in first["label"]
    assert (first["state"], first["step"], first["total"]) == ("done", 400, 400)
    assert (first["metric"], first["mode"], first["best_step"]) == ("accuracy", "max", 400)
    assert (failed["state"], failed["why"]) == ("failed", "worker-1 was killed by SIGKILL")
    assert stopped["state"] == "stopped"
    json.dumps(content)


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


def test_details_of_a_run_are_complete(runs):
    content = details(runs[0].path)
    assert content["directory"] == str(runs[0].path)
    assert content["problems"] == []
    worker = {"name": "worker-0", "host": "node-1", "phase": "train", "step": 400}
    assert content["workers"][0] == {**worker, "quiet_secs": None, "end": "done"}
    assert next(iter(content["time"]["secs"])) == "steps"
    assert 0 < content["time"]["useful"] < 1
    assert content["time"]["sizes"] == "2, 1 from step 200"
    marks = {(mark["step"], mark["kind"]) for mark in content["marks"]}
    saves = {(step, "save") for step in (100, 200, 300, 400)}
    assert marks == saves | {(200, "restart"), (10, "restart"), (200, "workers")}
    assert [row["name"] for row in content["worker_times"]] == ["worker-0", "worker-1"]
    assert content["straggler"].startswith("worker-0 is the slowest")
    assert (content["confusion"]["step"], len(content["confusion"]["matrix"])) == (400, 10)
    assert content["pictures"][0]["data"].startswith("data:image/png;base64,iVBOR")
    assert content["texts"] == [{"name": "samples.txt", "text": "Once upon a time\n"}]
    assert content["config"]["seed"] == "0"
    assert content["commands"][0].startswith("python train.py model=cnn")
    assert content["changes"][1].endswith("; changed seed: 0 → 0")
    assert (content["code"], content["machine"]) == (
        "commit 0123456789abcdef",
        "node-1, Python 3.11.7",
    )
    assert content["versions"] == {"tensorflow": "2.21.0", "steadfast": "0.1.0"}
    assert (content["devices"], content["replicas"], content["crash"]) == ("/device:CPU:0", 2, "")
    assert details(runs[2].path)["crash"].startswith("What happened")


def test_worker_that_lives_grows_quiet_until_its_next_record(tmp_path):
    (run,) = make_runs(tmp_path, 1, 20)
    (run.path / "result.json").unlink()
    run.show_processes(None)
    (worker, _) = details(run.path)["workers"]
    assert worker["end"] == "ended"  # nobody holds the lock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.runs.status.is_locked", lambda path: True)
        (worker, _) = details(run.path)["workers"]
    assert worker["end"] == ""
    assert worker["quiet_secs"] >= 0.5


RECORDS = ['{"argv": 5}', '{"lineage": 3}', '{"lineage": [{}]}', '{"argv": ["a"], "devices": 1}']


@pytest.mark.parametrize("record", RECORDS)
def test_changed_record_is_told_and_hides_nothing_else(tmp_path, record):
    (run,) = make_runs(tmp_path, 1, 20)
    (run.path / "run.json").write_text(record)
    content = details(run.path)
    assert len({*content["problems"]}) == len(content["problems"]) > 0
    assert (content["commands"], content["code"]) == ([], "")
    assert content["confusion"]
    (summary,) = Summaries("x", lambda: {"a": run.path}).payload()["runs"]
    assert summary["id"] == "a"
    json.dumps([content, summary])


def test_run_without_files_has_details_and_a_summary(tmp_path):
    content = details(tmp_path)
    assert (content["time"], content["workers"], content["marks"]) == (None, [], [])
    (summary,) = Summaries("x", lambda: {"a": tmp_path}).payload()["runs"]
    assert (summary["state"], summary["best"], summary["value"]) == ("waiting", None, None)


def test_values_for_json_are_finite():
    value = {"a": [float("nan"), (1.5, float("inf"))], 3: None}
    assert finite_only(value) == {"a": [None, [1.5, None]], "3": None}
