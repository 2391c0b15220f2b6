"""What the page shows of a run: also if files are missing, truncated or damaged."""

import json
import os
import time
import tracemalloc

import pytest

from tests.support.fake_runs import make_runs
from trainer.cli.page.run_details import details
from trainer.cli.page.series import read_series
from trainer.files import MAX_RECORD_BYTES
from trainer.runs import recorded_metrics
from trainer.runs.ledger import Ledger
from trainer.runs.run_summary import summarize


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six runs: done, done, failed, done, done, stopped."""
    return make_runs(tmp_path_factory.mktemp("runs"), 6, 40)


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
    assert (content["devices"], content["replicas"]) == ("/device:CPU:0", 2)


RECORDS = ['{"argv": 5}', '{"lineage": 3}', '{"lineage": [{}]}', '{"argv": ["a"], "devices": 1}']


@pytest.mark.parametrize("record", RECORDS)
def test_changed_record_is_told_and_hides_nothing_else(tmp_path, record):
    (run,) = make_runs(tmp_path, 1, 20)
    (run.path / "run.json").write_text(record)
    content = details(run.path)
    assert len({*content["problems"]}) == len(content["problems"]) > 0
    assert (content["commands"], content["code"]) == ([], "")
    assert content["confusion"]
    json.dumps(content)


def test_run_without_files_has_details(tmp_path):
    content = details(tmp_path)
    assert (content["time"], content["workers"], content["marks"]) == (None, [], [])


DAMAGED = {
    "run.json": "{",
    "config.yaml": "train: [",
    "confusion.json": '{"step": 1, "classes": ["a"], "matrix": [[1, 2]]}',
    "result.json": "[1]",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_named_and_hides_nothing_else(tmp_path, name):
    (run,) = make_runs(tmp_path, 1, 20)
    (run.path / name).write_text(DAMAGED[name])
    content = details(run.path)
    assert content["problems"]
    assert all(len(line.splitlines()) == 1 for line in content["problems"])
    assert content["texts"]


def test_time_goes_on_with_the_ledger_and_begins_anew_with_another(tmp_path):
    (run,) = make_runs(tmp_path, 1, 20)
    before = details(run.path)["time"]["wall_secs"]
    ledger, now = Ledger(run.path), time.time()
    ledger.mark("begin", at=now)
    ledger.mark("exit", at=now + 5)
    after = details(run.path)["time"]["wall_secs"]
    assert after == pytest.approx(before + 5)
    (run.path / "ledger.jsonl").unlink()
    assert details(run.path)["time"] is None


def test_no_link_in_a_run_of_somebody_else_is_followed(tmp_path):
    runs = make_runs(tmp_path / "runs", 3, 40)
    (tmp_path / "mine").mkdir()
    for run in (runs[0], runs[2]):  # done, failed
        files = [file for file in run.path.rglob("*") if file.is_file()]
        for number, file in enumerate(files):
            mine = file.rename(tmp_path / "mine" / f"{number}-{file.name}")
            file.symlink_to(mine)
        content = details(run.path)
        for key in ("config", "pictures", "texts", "confusion", "commands", "time"):
            assert not content[key], key
        problems = "\n".join(content["problems"])
        shown = {"config.yaml", "run.json", "samples.txt", "samples.png"}
        for name in shown & {file.name for file in files}:
            assert f"{name} cannot be read: it is a symbolic link" in problems
        assert read_series(run.path)["points"] == {}
        summary = summarize(run.path)
        assert (summary.config, summary.metrics) == ({}, {})
        assert "killed" not in summary.why


def test_huge_files_of_a_run_do_not_fill_the_memory(tmp_path):
    records = ("config.yaml", "run.json", "samples.txt", "samples.png", "confusion.json")
    (run,) = make_runs(tmp_path, 1, 40)
    for name in (*records, "metrics.jsonl", "ledger.jsonl"):
        size = MAX_RECORD_BYTES + 1 if name in records else 64 << 20
        os.truncate(run.path / name, 0)
        os.truncate(run.path / name, size)  # sparse
    tracemalloc.start()
    try:
        content, points = details(run.path), read_series(run.path)["points"]
        evaluations = recorded_metrics.read_evaluations(run.path)
        os.truncate(run.path / "ledger.jsonl", MAX_RECORD_BYTES + 1)
        config = summarize(run.path).config
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert (points, config, evaluations) == ({}, {}, [])
    for name in records:
        problem = f"{name} cannot be read: it has 268,435,457 bytes, more than "
        assert any(problem in line for line in content["problems"]), name
