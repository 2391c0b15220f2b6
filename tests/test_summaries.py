"""Metrics in files: read back, and after a reopening none stands there twice."""

import json

import pytest
from tensorboard.summary.writer import event_file_writer

from tests.processes import curve
from trainer.summaries import JsonLines, TensorBoard, open_writers


@pytest.fixture(autouse=True)
def files_in_order(monkeypatch):
    """Event files of the same second are read in the order of their names, in which the tenth of a process comes before the ninth."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def write(writer, split, steps, offset=0.0):
    for step in steps:
        writer.scalars(split, step, {"loss": step + offset, "accuracy": 0.5})
    writer.close()


def test_json_lines_are_one_object_each_and_readable_at_once(tmp_path):
    writer = JsonLines(tmp_path, 0)
    writer.scalars("train", 3, {"epoch": 0, "loss": 0.25})
    writer.scalars("test", 3, {"epoch": 0, "accuracy": 1.0})
    assert lines(tmp_path) == [
        {"step": 3, "split": "train", "epoch": 0, "loss": 0.25},
        {"step": 3, "split": "test", "epoch": 0, "accuracy": 1.0},
    ]
    writer.close()


def test_json_lines_after_the_position_are_removed(tmp_path):
    write(JsonLines(tmp_path, 0), "train", [1, 2, 3, 4, 5])
    write(JsonLines(tmp_path, 3), "train", [4, 5, 6], offset=0.5)
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5), (6, 6.5)]


@pytest.mark.parametrize("cut_off", ['{"step": 3, "sp', '{"step": 3', "{", "3", '{"step": 3, "split": "train"}, {"'])
def test_a_json_line_that_a_kill_cut_off_is_removed(tmp_path, cut_off):
    write(JsonLines(tmp_path, 0), "train", [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(cut_off)
    write(JsonLines(tmp_path, 3), "train", [4])
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 4]


def test_json_lines_at_the_end_keep_everything(tmp_path):
    write(JsonLines(tmp_path, 0), "train", [1, 2])
    before = (tmp_path / "metrics.jsonl").read_bytes()
    JsonLines(tmp_path, 2).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_tensorboard_reads_the_values_of_both_splits(tmp_path):
    writer = TensorBoard(tmp_path, 0)
    writer.scalars("train", 10, {"loss": 0.5, "learning_rate": 0.125})
    writer.scalars("train", 20, {"loss": 0.25, "learning_rate": 0.0625})
    writer.scalars("test", 20, {"loss": 0.75})
    writer.close()
    assert curve(tmp_path, "train", "loss") == [(10, 0.5), (20, 0.25)]
    assert curve(tmp_path, "train", "learning_rate") == [(10, 0.125), (20, 0.0625)]
    assert curve(tmp_path, "eval", "loss") == [(20, 0.75)]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("position", [0, 1, 3, 5])
def test_tensorboard_drops_what_was_superseded(tmp_path, position, split):
    write(TensorBoard(tmp_path, 0), split, [1, 2, 3, 4, 5])
    write(TensorBoard(tmp_path, position), split, range(position + 1, 6), offset=0.5)
    expected = [(step, step + 0.5 * (step > position)) for step in range(1, 6)]
    assert curve(tmp_path, TensorBoard.FOLDERS[split], "loss") == expected


def test_tensorboard_drops_what_was_superseded_twice(tmp_path):
    write(TensorBoard(tmp_path, 0), "train", [1, 2, 3, 4])
    write(TensorBoard(tmp_path, 2), "train", [3, 4, 5], offset=0.25)
    write(TensorBoard(tmp_path, 3), "train", [4, 5, 6], offset=0.5)
    assert curve(tmp_path, "train", "loss") == [(1, 1.0), (2, 2.0), (3, 3.25), (4, 4.5), (5, 5.5), (6, 6.5)]


def test_an_event_that_a_kill_cut_off_hides_none_of_the_next_attempt(tmp_path):
    write(TensorBoard(tmp_path, 0), "train", [1, 2, 3, 4])
    (file,) = (tmp_path / "events" / "train").iterdir()
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 5)
    write(TensorBoard(tmp_path, 2), "train", [3, 4, 5], offset=0.5)
    assert curve(tmp_path, "train") == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]


def test_only_the_configured_writers_are_opened(tmp_path):
    writers = open_writers(["jsonl"], tmp_path, 0)
    assert [type(writer) for writer in writers] == [JsonLines]
    assert not (tmp_path / "events").exists()
    writers += open_writers(["tensorboard"], tmp_path, 0)
    assert type(writers[1]) is TensorBoard
    for writer in writers:
        writer.close()
    assert open_writers([], tmp_path, 0) == []
