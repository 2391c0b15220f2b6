"""Metrics and predictions of a whole split: exact, and the same in every mode.

The matrix of tests/end_to_end shows that every layout has the bits of one device.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.marks import first_only
from tests.support.processes import log
from tests.support.training import ROUNDING, TWO, assert_same_bits, engine, train, variables
from trainer.datasets.digits import digits
from trainer.engine.evaluation.evaluator import blocks
from trainer.engine.pacing import Stopped
from trainer.errors import ConfigError
from trainer.files import read_json
from trainer.runs.checkpoint_marker import committed_steps
from trainer.tasks.classification import Classification

METRICS = ("metrics=[top_5,per_class,confusion,calibration]",)
# 50 examples a replica: in the last batch there are some that must not count.
OPTIONS = (
    *METRICS, "batch.per_replica=50", "batch.global_size=null", "train.ema_decay=0.9",
    "model.batch_norm=true", "model.dropout=0.3", "augment.crop=1", "train.steps=4",
    "evaluate.every_steps=2",
)  # fmt: skip


def by_numpy(run_engine):
    """Return metrics and the confusion matrix of the averaged weights, computed by NumPy."""
    batch = digits().test.fetch(tf.range(360, dtype=tf.int64))
    features = tf.cast(batch["features"], tf.float32) / 16
    run_engine.state.swap_averages()
    logits = run_engine.state.task.models["model"](features, training=False)
    logits = logits.numpy().astype(np.float64)
    run_engine.state.swap_averages()
    labels = batch["label"].numpy()
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    predicted = p.argmax(axis=1)
    top_5 = np.argsort(-p, axis=1)[:, :5] == labels[:, None]
    metrics = {
        "loss": -np.log(p[np.arange(360), labels]).mean(),
        "accuracy": (predicted == labels).mean(),
        "top_5": top_5.any(axis=1).mean(),
    }
    matrix = np.zeros([10, 10], int)
    np.add.at(matrix, (labels, predicted), 1)
    return metrics, matrix.tolist()


def joined(chunks):
    """Concatenate chunks."""
    chunks = list(chunks)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def evaluations(run_dir):
    """Return the lines of metrics.jsonl with metrics of the test split."""
    return [
        {name: value for name, value in line.items() if name not in ("split", "epoch")}
        for line in log(run_dir)
        if line["split"] == "test"
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return an engine that has trained four steps, with two evaluations."""
    run_engine = engine(tmp_path_factory.mktemp("trained"), *OPTIONS, *TWO)
    run_engine.train(lambda: False)
    return run_engine


@pytest.mark.slow
def test_metrics_equal_numpy_on_whole_split(trained):
    expected, matrix = by_numpy(trained)
    first, last = evaluations(trained.run_dir)
    assert (first["step"], last.pop("step")) == (2, 4)
    assert first.keys() - {"step"} == last.keys()
    assert {name: last[name] for name in expected} == pytest.approx(expected, abs=ROUNDING)
    table = read_json(trained.run_dir / "confusion.json")
    assert table == {"step": 4, "classes": [str(number) for number in range(10)], "matrix": matrix}
    # A second evaluation starts from nothing.
    again = trained.evaluator.evaluate(lambda: False).metrics
    assert last == again == trained.result()["metrics"]


@pytest.mark.slow
def test_predictions_do_not_depend_on_their_start_and_a_stop_restores_the_weights(
    trained, monkeypatch
):
    predictor = trained.predictor
    whole = joined(predictor.predict())
    for start in (1, 249, 250, 359):
        assert_same_bits(
            {name: value[start:] for name, value in whole.items()}, joined(predictor.predict(start))
        )
    assert list(predictor.predict(360)) == []
    monkeypatch.setattr(predictor._calls, "max_batches", 1)
    assert_same_bits(whole, joined(predictor.predict()))
    before = variables(trained)
    requests = []
    chunks = predictor.predict(stop_requested=lambda: bool(requests))
    requests.append(next(chunks))
    with pytest.raises(Stopped):
        next(chunks)
    assert_same_bits(before, variables(trained))


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 9], [10]])
def test_blocks_do_not_depend_on_chunks_and_omit_rows_of_weight_zero(cuts):
    whole = {
        "id": np.arange(11),
        "weight": (np.arange(11) != 5).astype(np.float32),
        "probabilities": np.eye(11),
    }
    chunks = [
        dict(zip(whole, parts, strict=True))
        for parts in zip(*(np.split(rows, cuts) for rows in whole.values()), strict=True)
    ]
    result = list(blocks(chunks, 4))
    assert [block["id"].tolist() for block in result] == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10]]
    for block in result:
        np.testing.assert_array_equal(block["probabilities"], np.eye(11)[block["id"]])


@pytest.mark.slow
def test_best_checkpoint_and_callbacks_follow_any_metric(tmp_path):
    options = (
        "evaluate.every_steps=1", "checkpoint.every_steps=1", "checkpoint.keep=1",
        "checkpoint.best.metric=precision/3", "callbacks=early_stopping",
        "callbacks.early_stopping.metric=recall/9", "callbacks.early_stopping.patience=8",
        "+metrics.margin._target_=tests.support.toy_metrics.Margin",
    )  # fmt: skip
    train(tmp_path, *METRICS, *options)
    lines = evaluations(tmp_path)
    scores = [line["precision/3"] for line in lines]
    best = 1 + scores.index(max(scores))
    assert committed_steps(tmp_path / "checkpoints") == sorted({best, 8})
    assert -1 < lines[-1]["margin"] < 1


class Silent(Classification):
    predict_step = None


def test_metric_of_predictions_needs_a_task_that_predicts(tmp_path):
    with pytest.raises(ConfigError, match=r"^metrics \(per_class\) needs a task with predict_step"):
        engine(tmp_path, "metrics=per_class", f"task._target_={__name__}.Silent")


class Comparing(Classification):
    """Compares each example with all others that are evaluated at a time."""

    def eval_step(self, batch, step):
        own = tf.reshape(batch["features"], [-1, 64])
        everyone = tf.reshape(step.all_gather(own), [-1, 64])
        weight = tf.reshape(step.all_gather(batch["weight"]), [-1])
        losses = tf.reduce_logsumexp(own @ tf.transpose(everyone) + tf.math.log(weight), axis=1)
        return losses, {"accuracy": losses}


COMPARING = [f"task._target_={__name__}.Comparing", "batch.global_size=50"]


def test_evaluation_may_communicate(tmp_path):
    losses = [
        engine(tmp_path / name, *COMPARING, *layout)
        .evaluator.evaluate(lambda: False)
        .metrics["loss"]
        for name, layout in (("one", ()), ("two", TWO))
    ]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    assert losses[0] > 10.0  # of half of the others it would be 0.7 less


class Updating(Classification):
    """Updates its model where it should only judge it."""

    def eval_step(self, batch, step):
        step.minimize(lambda part: super(Updating, self).eval_step(part), batch, *self.trained)
        return super().eval_step(batch)

    @property
    def trained(self):
        return self.models["model"], self.optimizers["model"]


def test_evaluation_may_not_update(tmp_path):
    run_engine = engine(tmp_path, f"task._target_={__name__}.Updating", "batch.global_size=50")
    with pytest.raises(ConfigError, match=r"^task: eval_step calls step\.minimize, but an evaluat"):
        run_engine.evaluator.evaluate(lambda: False)


class Drawing(Classification):
    """Judges each example by numbers that it draws."""

    def eval_step(self, batch, step):
        losses, metrics = super().eval_step(batch)
        size = batch["weight"].shape[0]
        noise = step.random_normal([size, 3])[:, 0] + tf.random.uniform([size])
        return losses + tf.cast(batch["id"] % 7, tf.float32) * noise, metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    first_only([["batch.global_size=64", *TWO], ["batch.global_size=48", "batch.shards=4", *TWO]]),
)
def test_draws_of_an_evaluation_are_those_of_the_example(tmp_path, layout):
    task = f"task._target_={__name__}.Drawing"
    losses = [
        engine(tmp_path / name, task, *options).evaluator.evaluate(lambda: False).metrics["loss"]
        for name, options in (("one", ["batch.global_size=50"]), ("other", layout))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
