"""mode=predict: a table of predictions, the same bytes however often it was killed."""

import csv
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.support.command_line import run_here
from tests.support.processes import only_run, succeed
from tests.support.training import SMALL, engine
from trainer import optional_packages
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.errors import ConfigError
from trainer.runs import prediction_table
from trainer.worker.predict import table_formats
from trainer.worker.predict.predict import predict
from trainer.worker.training import TrainingRun

OPTIONS = ["batch.global_size=50", "train.steps=2"]
QUIET = Channel(lambda message: None)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A trained run."""
    run_dir = tmp_path_factory.mktemp("run")
    engine(run_dir, *OPTIONS).train(lambda: False)
    return run_dir


def predicted(run_dir, *overrides, stop=lambda: False, channel=QUIET):
    """Predict in this process; return whether it finished, and the table."""
    experiment = compose([*SMALL, *OPTIONS, "mode=predict", *overrides])
    run = TrainingRun(experiment, run_dir, channel)
    run.checkpointer.restore_latest()
    is_finished = predict(run, 2, stop)
    return is_finished, prediction_table.requested_table(experiment, run_dir, 2)


@pytest.mark.slow
def test_table_is_read_back_to_the_bit_in_both_formats(run_dir):
    _, table = predicted(run_dir)
    _, parquet = predicted(run_dir, "predict.format=parquet")
    trained = engine(run_dir, *OPTIONS)
    trained.checkpointer.restore_latest()
    chunks = list(trained.predictor.predict())
    expected = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    with table.path.open() as file:
        rows = list(csv.DictReader(file))
    columns = [f"probability_{number}" for number in range(10)]
    assert list(rows[0]) == ["id", "label", "predicted", *columns]
    values = np.array([[row[name] for name in columns] for row in rows], np.float64).astype(
        np.float32
    )
    assert values.tobytes() == expected["probabilities"].tobytes()
    assert [int(row["label"]) for row in rows] == expected["label"].tolist()
    assert [int(row["predicted"]) for row in rows] == expected["probabilities"].argmax(1).tolist()
    parquet_rows = pq.read_table(parquet.path).to_pydict()
    assert (
        np.array([parquet_rows[name] for name in columns], np.float32).T.tobytes()
        == expected["probabilities"].tobytes()
    )
    assert parquet_rows["id"] == list(range(360))
    assert json.loads(table.record.read_text())["batch_size"] == 50
    assert not table.rows.exists()


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_table_does_not_depend_on_a_stop_or_a_torn_row(run_dir, tmp_path, format_name):
    options = [f"predict.format={format_name}", "predict.split=train"]
    whole = f"predict.path={tmp_path / 'whole'}"
    stopped = f"predict.path={tmp_path / 'stopped'}"
    predicted(run_dir, *options, whole)
    stops = iter([False, False])
    finished, table = predicted(run_dir, *options, stopped, stop=lambda: next(stops, True))
    assert not finished
    assert not table.path.exists()
    os.truncate(table.rows, table.rows.stat().st_size - 3)
    messages = []
    assert predicted(run_dir, *options, stopped, channel=Channel(messages.append))[0]
    assert any(getattr(x, "text", "").startswith("Continuing after ") for x in messages)
    assert table.is_finished()
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "stopped").read_bytes()


@pytest.mark.slow
def test_folder_of_images_is_predicted_by_path(run_dir, tmp_path):
    for name in ("b.png", "a/c.png", ".hidden.png", "none.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(
            tf.io.encode_png(tf.fill([8, 8, 1], tf.constant(9, tf.uint8))).numpy()
        )
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    _, table = predicted(run_dir, f"predict.images={tmp_path}")
    lines = [line.split(",") for line in table.path.read_text().splitlines()]
    assert [line[0] for line in lines] == ["id", "a/c.png", "b.png", "bad.jpg"]
    assert lines[1][1:] == lines[2][1:]
    assert set(lines[3][1:]) == {""}


def test_any_float_is_read_back_to_the_bit():
    numbers = (
        np.random.RandomState(0)
        .randint(0, 2**31, 100_000, np.int64)
        .astype(np.uint32)
        .view(np.float32)
    )
    numbers = numbers[np.isfinite(numbers)]
    texts = table_formats._texts(numbers, np.ones(len(numbers), bool))
    assert np.array(texts, np.float64).astype(np.float32).tobytes() == numbers.tobytes()


def test_missing_inputs_are_reported_before_any_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run_here("mode=predict")
    assert "mode (predict) needs a run, and no run has these values in runs" in outcome.err
    assert outcome.code == 2
    (tmp_path / "empty").mkdir()
    assert "no image in it" in run_here("mode=predict", "predict.images=empty").err
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs pyarrow"):
        prediction_table.check(compose(["mode=predict", "predict.format=parquet"]))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_foreign_table_is_not_overwritten(run_dir, tmp_path):
    table = prediction_table.requested_table(
        compose([*OPTIONS, "mode=predict", f"predict.path={tmp_path / 'table'}"]), run_dir, 2
    )
    assert not table.is_finished()
    table.path.write_text("precious")
    with pytest.raises(ConfigError, match="is not what this command makes"):
        table.is_finished()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["multi_worker", "parameter_server"])
def test_cluster_predicts_what_one_device_predicts(tmp_path, strategy):
    options = ["model=softmax", "batch.global_size=50", "train.steps=2", "writers=[jsonl]"]
    options += [f"strategy={strategy}", "strategy.workers=2"]
    for more in ([], ["mode=predict"], ["mode=predict"]):
        out = succeed(tmp_path, *options, *more)
    assert "Already finished: 360 rows are predicted" in out
    run_dir = only_run(tmp_path)
    table = run_dir / "predictions" / "test-2.csv"
    size = json.loads(table.with_name("test-2.csv.json").read_text())["batch_size"]
    alone = [
        "strategy=one_device",
        "resume_allow=[batch.global_size]",
        f"batch.global_size={size}",
        f"predict.path={tmp_path / 'alone.csv'}",
    ]
    succeed(tmp_path, f"resume={run_dir}", "mode=predict", *alone)
    assert len(table.read_text().splitlines()) == 361
    assert table.read_bytes() == (tmp_path / "alone.csv").read_bytes()
