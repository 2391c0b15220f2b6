"""What the page shows of runs: also of files that grow, are cut, missing or damaged."""

import json
import math
import os
import tracemalloc

import pytest

from tests.support.fake_runs import make_runs
from trainer.cli.page import run_data
from trainer.cli.page.run_data import Summaries, details, read_series, thin
from trainer.files import MAX_RECORD_BYTES
from trainer.runs import recorded_metrics
from trainer.runs.run_summary import summarize


def test_only_runs_that_have_changed_are_read_again(tmp_path, monkeypatch):
    runs = make_runs(tmp_path, 2, 20)
    read = []
    summarize = run_data.summarize
    monkeypatch.setattr(run_data, "summarize", lambda path: read.append(path) or summarize(path))
    summaries = Summaries("x", lambda: {run.path.name: run.path for run in runs})
    assert summaries.payload()["runs"] == summaries.payload()["runs"]
    assert read == [run.path for run in runs]
    runs[1].train(20)
    summaries.payload()
    assert read[2:] == [runs[1].path]
    del runs[0]
    assert len(summaries.payload()["runs"]) == 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six runs: done, done, failed, done, done, stopped."""
    return make_runs(tmp_path_factory.mktemp("runs"), 6, 40)


def test_details_of_a_run_are_complete(runs):
    content = details(runs[0].path)
    expected = {
        "directory": str(runs[0].path), "problems": [], "code": "commit 0123456789abcdef",
        "machine": "node-1, Python 3.11.7", "devices": "/device:CPU:0", "replicas": 2,
        "texts": [{"name": "samples.txt", "text": "Once upon a time\n"}],
        "versions": {"tensorflow": "2.21.0", "steadfast": "0.1.0"},
    }  # fmt: skip
    assert {key: content[key] for key in expected} == expected
    worker = {"name": "worker-0", "host": "node-1", "phase": "train", "step": 400}
    assert content["workers"][0] == {**worker, "quiet_secs": None, "end": "done"}
    assert next(iter(content["time"]["secs"])) == "train"
    assert 0 < content["time"]["useful"] < 1
    assert content["time"]["sizes"] == "2, 1 from step 200"
    marks = {(mark["step"], mark["kind"]) for mark in content["marks"]}
    saves = {(step, "save") for step in (100, 200, 300, 400)}
    assert marks == saves | {(200, "restart"), (10, "restart"), (200, "workers")}
    assert [row["name"] for row in content["worker_times"]] == ["worker-0", "worker-1"]
    assert content["straggler"].startswith("worker-0 is the slowest")
    assert (content["confusion"]["step"], len(content["confusion"]["matrix"])) == (400, 10)
    assert content["pictures"][0]["data"].startswith("data:image/png;base64,iVBOR")
    assert content["config"]["seed"] == "0"
    assert content["commands"][0].startswith("python train.py model=cnn")
    assert content["changes"][1].endswith("; changed seed: 0 → 0")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", "{"), ("run.json", '{"argv": 5}'), ("run.json", '{"lineage": 3}'),
        ("config.yaml", "train: ["), ("result.json", "[1]"),
        ("confusion.json", '{"step": 1, "classes": ["a"], "matrix": [[1, 2]]}'),
    ],
)  # fmt: skip
def test_damaged_file_is_named_and_hides_nothing_else(tmp_path, name, text):
    (run,) = make_runs(tmp_path, 1, 20)
    (run.path / name).write_text(text)
    content = details(run.path)
    assert len({*content["problems"]}) == len(content["problems"]) > 0
    assert all(len(line.splitlines()) == 1 for line in content["problems"])
    assert content["texts"]
    if name == "run.json":
        assert (content["commands"], content["code"]) == ([], "")
    json.dumps(content)


def test_no_link_in_a_run_of_another_user_is_followed(tmp_path):
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


def line(step, split="train", **values):
    return json.dumps({"step": step, "split": split, "epoch": 1, **values}) + "\n"


def add(path, *lines, name="metrics.jsonl"):
    with open(path / name, "a") as file:
        file.write("".join(lines))


def points(series, name):
    columns = series["points"].get(name, {"step": [], "value": []})
    return list(zip(columns["step"], columns["value"], strict=True))


def test_curves_of_both_files_ascend_and_the_last_line_of_a_step_counts(tmp_path):
    assert read_series(tmp_path)["points"] == {}
    add(tmp_path, line(2, loss=0.5), line(1, loss=2), line(2, loss=math.nan), line(3, loss=None))
    add(tmp_path, line(1, "test", loss=1.23456789), name="evaluations.jsonl")
    series = read_series(tmp_path)
    assert points(series, "train/loss") == [(1, 2), (2, None)]
    assert points(series, "test/loss") == [(1, 1.23457)]
    assert set(series["points"]) == {"train/loss", "test/loss"}
    assert (series["reset"], series["problems"]) == (False, [])


def test_reading_continues_where_it_has_ended(tmp_path):
    first = read_series(tmp_path)
    add(tmp_path, line(1, loss=1), line(2, loss=2)[:20])
    second = read_series(tmp_path, first["offset"])
    assert points(second, "train/loss") == [(1, 1)]  # the last line is not complete yet
    add(tmp_path, line(2, loss=2)[20:])
    add(tmp_path, line(1, "test", loss=3), name="evaluations.jsonl")
    third = read_series(tmp_path, second["offset"])
    assert (points(third, "train/loss"), points(third, "test/loss")) == ([(2, 2)], [(1, 3)])
    assert read_series(tmp_path, third["offset"])["points"] == {}
    assert not any(series["reset"] for series in (first, second, third))


@pytest.mark.parametrize("more", [0, 1, 9], ids=["shorter", "as long", "longer"])
def test_file_that_was_cut_is_read_from_its_beginning(tmp_path, more):
    add(tmp_path, line(1, loss=1), line(2, loss=2))
    position = read_series(tmp_path)["offset"]
    (tmp_path / "metrics.jsonl").write_text(line(1, loss=1))
    add(tmp_path, *[line(2 + number, loss=7) for number in range(more)])
    series = read_series(tmp_path, position)
    assert series["reset"]
    assert points(series, "train/loss") == [(1, 1), *((2 + number, 7) for number in range(more))]


def test_damaged_lines_are_counted_and_hide_no_other(tmp_path):
    add(tmp_path, "[]\n", "\n", line(1, loss=1), "\0" * 100 + "\n", line(2, loss=2))
    series = read_series(tmp_path)
    assert points(series, "train/loss") == [(1, 1), (2, 2)]
    assert series["problems"] == ["metrics.jsonl: 2 lines cannot be read"]
    (tmp_path / "evaluations.jsonl").mkdir()
    series = read_series(tmp_path)
    assert points(series, "train/loss") == [(1, 1), (2, 2)]
    assert series["problems"][0].startswith("evaluations.jsonl cannot be read: ")


def test_thinned_curve_keeps_its_ends_extremes_and_gaps():
    values = [math.sin(step / 50) for step in range(10_000)]
    values[1234], values[4321], values[7777] = 9.0, -9.0, math.nan
    curve = [(step, value) for step, value in enumerate(values)]
    kept = thin(curve, 500)
    assert 400 < len(kept) <= 501
    assert {curve[0], curve[1234], curve[4321], curve[7777], curve[-1]} <= set(kept)
    assert list(kept) == sorted(kept, key=lambda point: point[0])
    assert thin(curve[:500], 500) == curve[:500]
