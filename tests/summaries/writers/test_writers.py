"""Metrics in files: read back, and no point twice after a reopening."""

import io
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util.tensor_util import make_ndarray

from tests.support.processes import curve
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.summaries.writers.background import open_writers
from trainer.summaries.writers.jsonl import JsonLines
from trainer.summaries.writers.tensorboard import TensorBoard


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def write(writer, split, steps, offset=0.0):
    for step in steps:
        writer.scalars(split, step, {"loss": step + offset, "accuracy": 0.5})
    writer.close()


def test_json_lines_removes_lines_after_the_position(tmp_path):
    write(JsonLines(tmp_path, 0), "train", [1, 2, 3, 4, 5])
    write(JsonLines(tmp_path, 3), "train", [4, 5, 6], offset=0.5)
    assert [line["loss"] for line in lines(tmp_path)] == [1.0, 2.0, 3.0, 4.5, 5.5, 6.5]


@pytest.mark.parametrize("cut_off", ['{"step": 3, "sp', "3", '{"step": 3, "split": "train"}, {"'])
def test_json_lines_removes_an_incomplete_line(tmp_path, cut_off):
    write(JsonLines(tmp_path, 0), "train", [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(cut_off)
    write(JsonLines(tmp_path, 3), "train", [4])
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 4]


def test_json_lines_keeps_lines_up_to_the_position(tmp_path):
    write(JsonLines(tmp_path, 0), "train", [1, 2])
    before = (tmp_path / "metrics.jsonl").read_bytes()
    JsonLines(tmp_path, 2).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_tensorboard_drops_events_superseded_twice(tmp_path):
    write(TensorBoard(tmp_path, 0), "train", [1, 2, 3, 4])
    write(TensorBoard(tmp_path, 2), "train", [3, 4, 5], offset=0.25)
    write(TensorBoard(tmp_path, 3), "train", [4, 5, 6], offset=0.5)
    write(TensorBoard(tmp_path, 6), "test", [4])
    expected = [(1, 1.0), (2, 2.0), (3, 3.25), (4, 4.5), (5, 5.5), (6, 6.5)]
    assert curve(tmp_path, "train", "loss") == expected
    assert curve(tmp_path, "test", "loss") == [(4, 4.0)]


def test_tensorboard_ignores_an_incomplete_event(tmp_path):
    write(TensorBoard(tmp_path, 0), "train", [1, 2, 3, 4])
    (file,) = (tmp_path / "events").iterdir()
    with file.open("r+b") as event_file:
        event_file.truncate(file.stat().st_size - 5)
    write(TensorBoard(tmp_path, 2), "train", [3, 4, 5], offset=0.5)
    assert curve(tmp_path, "train") == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]


@pytest.mark.parametrize(
    ("names", "files"),
    [
        ("[]", set()),
        ("[jsonl]", {"metrics.jsonl"}),
        ("[tensorboard,jsonl]", {"metrics.jsonl", "events"}),
    ],
)
def test_open_writers_opens_the_configured_writers(tmp_path, names, files):
    writers = open_writers(
        compose([f"writers={names}"]).writers, tmp_path, 0, Channel(lambda message: None)
    )
    for writer in writers:
        writer.scalars("train", 1, {"loss": 0.5})
        writer.close()
    assert {file.name for file in tmp_path.iterdir()} == files


def test_tensorboard_shows_images_histograms_text_and_the_graph(tmp_path):
    writer = TensorBoard(tmp_path, 0)
    images = np.arange(2 * 4 * 6, dtype=np.uint8).reshape(2, 4, 6, 1)
    writer.images("train", 5, "input", images)
    writer.images("test", 5, "mistakes", images.repeat(3, axis=-1))
    writer.histogram("train", 5, "weights/kernel", np.array([[0.0, 1.0], [3.0, np.inf]]))
    writer.text("config", "seed: 0")
    writer.graph(tf.Graph().as_graph_def().SerializeToString())
    writer.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    plugins = {
        tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in events.Tags()["tensors"]
    }
    assert (
        plugins.items()
        >= {"pictures/input": "images", "weights/kernel": "histograms", "config": "text"}.items()
    )
    assert events.Tags()["graph"] is True
    for tag, channels in (("pictures/input", 1), ("pictures/mistakes/test", 3)):
        (event,) = events.Tensors(tag)
        width, height, *encoded = make_ndarray(event.tensor_proto)
        assert (event.step, int(width), int(height), len(encoded)) == (5, 6, 4, 2)
        shown = np.stack(
            [np.array(Image.open(io.BytesIO(png))).reshape(4, 6, channels) for png in encoded]
        )
        np.testing.assert_array_equal(shown, images.repeat(channels, axis=-1))
    buckets = make_ndarray(events.Tensors("weights/kernel")[0].tensor_proto)
    assert buckets.shape == (30, 3)
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (0.0, 3.0, 3)
    assert make_ndarray(events.Tensors("config")[0].tensor_proto).item() == b"seed: 0"


def test_tensorboard_groups_what_the_training_reports(tmp_path):
    names = ["loss", "epoch", "goodput", "learning_rate/generator", "worker_1_step_secs",
             "memory_mib", "of_mine"]  # fmt: skip
    writer = TensorBoard(tmp_path, 0)
    writer.scalars("train", 5, dict.fromkeys(names, 0.5))
    writer.scalars("test", 5, {"epoch": 1, "loss": 0.25, "top_5": 1.0})
    writer.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert set(events.Tags()["tensors"]) == {
        "metrics/loss/train", "metrics/loss/test", "metrics/top_5/test", "metrics/of_mine/train",
        "time/epoch", "time/goodput", "optimizer/learning_rate/generator",
        "worker/worker_1_step_secs", "system/memory_mib", "custom_scalars__config__",
    }  # fmt: skip
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(make_ndarray(event.tensor_proto).item())
    charts = {chart.title: chart.multiline.tag for chart in layout.category[0].chart}
    assert charts.keys() == {"loss", "top_5"}
    (pattern,) = charts["loss"]
    assert [tag for tag in sorted(events.Tags()["tensors"]) if re.search(pattern, tag)] == [
        "metrics/loss/test",
        "metrics/loss/train",
    ]
