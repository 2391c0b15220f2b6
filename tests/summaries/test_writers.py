"""Metrics in files: read back, no point twice after a reopening, and the HParams tab."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler
from tensorboard.util.tensor_util import make_ndarray

from tests.support.processes import curve
from trainer.cli.compose import compose
from trainer.summaries.run_introduction import hyperparameters
from trainer.summaries.writers.jsonl import JsonLines
from trainer.summaries.writers.tensorboard import TensorBoard


def write(writer, split, steps, offset=0.0):
    for step in steps:
        writer.scalars(split, step, {"loss": step + offset, "accuracy": 0.5})
    writer.close()


@pytest.mark.parametrize(
    "cut_off", ["", '{"step": 3, "sp', "3", '{"step": 3, "split": "train"}, {"']
)
def test_json_lines_keeps_whole_lines_up_to_the_position(tmp_path, cut_off):
    write(JsonLines(tmp_path, 0), "train", [1, 2, 3, 4, 5])
    file = tmp_path / "metrics.jsonl"
    before = file.read_bytes()
    JsonLines(tmp_path, 5).close()
    assert file.read_bytes() == before
    file.write_bytes(before + cut_off.encode())
    write(JsonLines(tmp_path, 3), "train", [4, 5, 6], offset=0.5)
    found = [json.loads(line)["loss"] for line in file.read_text().splitlines()]
    assert found == [1.0, 2.0, 3.0, 4.5, 5.5, 6.5]


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
    plugins = {"pictures/input": "images", "weights/kernel": "histograms", "config": "text"}
    for tag, plugin in plugins.items():
        assert events.SummaryMetadata(tag).plugin_data.plugin_name == plugin
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


def sessions(runs_dir):
    """Return the session group of each run, by name, as the tab lists it."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(runs_dir)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(runs_dir))))
    unknown = [api_pb2.STATUS_UNKNOWN]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=unknown, slice_size=100)
    groups = {
        group.name: group
        for group in Handler(RequestContext(), context, "", request).run().session_groups
    }
    assert all(len(group.sessions) == 1 for group in groups.values())
    return groups


def values(group):
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}


def introduce(run_dir, *overrides):
    writer = TensorBoard(run_dir, 0)
    writer.hyperparameters(hyperparameters(compose(list(overrides))))
    return writer


def test_hyperparameters_are_the_choices_and_values_that_name_the_run():
    words = ["model=mobilenet", "schedule=cosine", "callbacks=early_stopping"]
    shown = hyperparameters(compose([*words, "strategy=multi_worker"]))
    expected = {
        "model": "mobilenet", "schedule": "cosine", "callbacks": "early_stopping",
        "strategy": "multi_worker", "dataset": "digits", "task": "classification",
        "seed": 0, "jit": False, "train.epochs": 30, "model.alpha": 1.0,
        "callbacks.early_stopping.patience": 5, "strategy.workers": 2,
    }  # fmt: skip
    assert expected.items() <= shown.items()
    of_command = {"name", "runs_dir", "mode", "resume", "checkpoint", "summary", "sweep", "search"}
    assert not of_command & {name.split(".")[0] for name in shown}
    assert not [name for name in shown if name.endswith("_target_")]
    assert not {"train.steps", "train.clip_norm", "fault"} & shown.keys()


def test_tab_lists_each_run_with_typed_values_and_the_last_metrics(tmp_path):
    words = ["jit=true", "precision=mixed_bfloat16"]
    for name, rate in (("a", 0.1), ("b", 0.01)):
        writer = introduce(tmp_path / name, f"optimizer.learning_rate={rate}", *words)
        writer.scalars("train", 1, {"loss": 4.0})
        writer.scalars("test", 1, {"loss": 2.0, "accuracy": 0.25})
        writer.scalars("test", 2, {"loss": rate, "accuracy": 0.125})
        writer.close()
    groups = sessions(tmp_path)
    assert sorted(groups) == ["a", "b"]
    for name, rate in (("a", 0.1), ("b", 0.01)):
        experiment = compose([f"optimizer.learning_rate={rate}", *words])
        assert values(groups[name]) == hyperparameters(experiment)
        assert {value.name.group for value in groups[name].metric_values} == {""}
        metrics = {value.name.tag: value.value for value in groups[name].metric_values}
        expected = {
            "metrics/loss/train": 4.0, "metrics/loss/test": rate, "metrics/accuracy/test": 0.125,
        }  # fmt: skip
        assert metrics == pytest.approx(expected)


def test_attempt_replaces_earlier_attempts_also_an_incomplete_one(tmp_path):
    introduce(tmp_path / "run").close()
    introduce(tmp_path / "run").close()
    (file,) = (tmp_path / "run" / "events").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert sessions(tmp_path) == {}
    introduce(tmp_path / "run", "optimizer.learning_rate=0.5").close()
    assert values(sessions(tmp_path)["run"])["optimizer.learning_rate"] == 0.5
