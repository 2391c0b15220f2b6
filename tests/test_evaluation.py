"""Metrics of the whole test split: exact on every strategy, and the same wherever they are told."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.processes import only_run, run
from tests.test_tasks import GAN
from tests.training import SMALL, engine, train
from trainer import build
from trainer.channel import Channel
from trainer.cli import compose
from trainer.cluster import Cluster
from trainer.datasets.digits import digits
from trainer.errors import ConfigError
from trainer.writers.base import Writer

METRICS = ["metrics=[top_5,per_class,confusion,calibration]"]
# 50 examples a replica: in the last batch there are some that must not count.
OPTIONS = [*METRICS, "batch.per_replica=50", "batch.global_size=null", "train.ema_decay=0.9", "model.batch_norm=true"]
STRATEGIES = {
    "one_device": [],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=2"],
}


def by_numpy(made):
    """Gives every metric and the confusion matrix of an engine's averaged weights, from the logits of the whole test split."""
    everything = digits().test.fetch(tf.range(360, dtype=tf.int64))
    made.state.swap_averages()
    logits = made.state.task.models["model"](tf.cast(everything["features"], tf.float32) / 16, training=False).numpy().astype(np.float64)
    made.state.swap_averages()
    labels = everything["label"].numpy()
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    predicted, surest = p.argmax(axis=1), p.max(axis=1)
    found = {
        "loss": -np.log(p[np.arange(360), labels]).mean(),
        "accuracy": (predicted == labels).mean(),
        "top_5": (np.argsort(-p, axis=1)[:, :5] == labels[:, None]).any(axis=1).mean(),
    }
    for name, counts in (("precision", predicted), ("recall", labels)):
        of_class = {f"{name}/{c}": (predicted == labels)[counts == c].mean() if (counts == c).any() else 0.0 for c in range(10)}
        found |= {name: np.mean(list(of_class.values())), **of_class}
    bins = [(surest > low / 15) & (surest <= (low + 1) / 15) for low in range(15)]
    found["calibration_error"] = sum(abs((surest - (predicted == labels))[inside].sum()) for inside in bins) / 360
    return found, [[int(((labels == row) & (predicted == column)).sum()) for column in range(10)] for row in range(10)]


def lines(run_dir):
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("split", "epoch")} for line in found if line["split"] == "test"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Gives the engine of a strategy that has trained four steps, and was evaluated twice."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = engine(tmp_path_factory.mktemp(name), *STRATEGIES[name], *OPTIONS, "train.steps=4", "evaluate.every_steps=2")
            made[name].train(lambda: False)
        return made[name]

    return get


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_metric_equals_numpy_on_the_whole_split(trained, strategy):
    made = trained(strategy)
    expected, matrix = by_numpy(made)
    first, last = lines(made.run_dir)
    assert (first["step"], last.pop("step")) == (2, 4)
    assert first.keys() - {"step"} == last.keys() == expected.keys()
    assert last == pytest.approx(expected, abs=1e-6)
    table = json.loads((made.run_dir / "confusion.json").read_text())
    assert table == {"step": 4, "classes": [str(number) for number in range(10)], "matrix": matrix}
    assert last == made.evaluator.evaluate(lambda: False) == made.result()["metrics"]  # nothing is left from before


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["multi_worker", "parameter_server"])
def test_every_metric_of_a_cluster_equals_numpy_on_the_whole_split(tmp_path, strategy):
    options = [*SMALL, *METRICS, "batch.global_size=100", "train.steps=4", "train.ema_decay=0.9", "evaluate.every_steps=2"]
    code, out, err = run(tmp_path, *options, f"strategy={strategy}", "strategy.workers=2")
    assert code == 0, out + err
    run_dir = only_run(tmp_path)
    made = build.engine(compose(options), run_dir, Channel(lambda message: None))  # on one device, whatever it was trained on
    assert made.checkpoints.restore_latest() == 4
    expected, matrix = by_numpy(made)
    last = lines(run_dir)[-1]
    assert last == pytest.approx({"step": 4, **expected}, abs=1e-6)
    assert json.loads((run_dir / "result.json").read_text())["metrics"] == {name: last[name] for name in expected}
    assert json.loads((run_dir / "confusion.json").read_text())["matrix"] == matrix


def test_what_a_run_is_refused_for_leaves_nothing(tmp_path):
    code, out, err = run(tmp_path, *SMALL, *METRICS, "checkpoint.best.metric=precison")
    assert (code, (tmp_path / "runs").exists() and list((tmp_path / "runs").iterdir())) in ((2, []), (2, False)), out + err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: checkpoint.best.metric (precison) must be a metric of the test split, which has loss, accuracy, top_5, ")
    assert line.endswith("; did you mean 'precision'?")


def test_strategies_agree_to_the_bit_where_the_batch_of_a_replica_is_the_same(trained):
    one, *others = (trained(name) for name in STRATEGIES)
    own = set(one.state.task.metrics)  # whose sums are made by the replicas

    def further(made):
        return {name: value for name, value in made.evaluator.evaluate(lambda: False).items() if name not in own}

    for other in others:
        other.state.task.models["model"].set_weights(one.state.task.models["model"].get_weights())
        for mine, theirs in zip(one.state.averages["model"], other.state.averages["model"], strict=True):
            theirs.assign(mine.read_value())
        assert further(other) == further(one)


def test_the_same_is_told_wherever_it_is_evaluated(trained):
    made = trained("one_device")
    last = lines(made.run_dir)[-1]
    experiment, channel = compose([*SMALL, *OPTIONS, "train.steps=4"]), Channel(lambda message: None)
    beside = build.sidecar(experiment, made.run_dir, channel, Cluster())
    beside.checkpoints.restore(4)
    assert {"step": 4, **beside.evaluator.evaluate(lambda: False)} == last
    experiment.mode = "evaluate"
    alone = build.engine(experiment, made.run_dir, channel)
    assert alone.checkpoints.restore_latest() == 4
    assert {"step": 4, **alone.evaluator.evaluate(lambda: False)} == last


class Shown(Writer):
    """Remembers the images."""

    def __init__(self):
        self.found = {}

    def images(self, split, step, name, images):
        self.found[split, step, name] = images


def test_images_go_to_the_writers(tmp_path):
    made, shown = engine(tmp_path, *METRICS, "summary.mistakes=3", "train.steps=2", "evaluate.every_steps=1"), Shown()
    made.reporter._open_writers = lambda position: [shown]
    made.train(lambda: False)
    assert set(shown.found) == {("test", step, name) for step in (1, 2) for name in ("confusion", "mistakes")}
    assert shown.found["test", 2, "mistakes"].shape[0] == 3
    assert all(images.dtype == np.uint8 and images.ndim == 4 for images in shown.found.values())


def test_without_metrics_nothing_is_predicted(tmp_path):
    made = engine(tmp_path)
    assert made.evaluator._measures is None
    assert made.evaluator.images == {}
    made.outputs.each = None
    made.train(lambda: False)
    assert not (tmp_path / "confusion.json").exists()


def test_the_best_checkpoint_and_callbacks_follow_any_metric(tmp_path):
    options = ["evaluate.every_steps=1", "checkpoint.every_steps=1", "checkpoint.keep=1", "checkpoint.best.metric=precision/3"]
    stopping = ["callbacks=early_stopping", "callbacks.early_stopping.metric=recall/9", "callbacks.early_stopping.patience=8"]
    own = ["+metrics.margin._target_=tests.toy_metrics.Margin"]
    train(tmp_path, *METRICS, *options, *stopping, *own)
    scores = [line["precision/3"] for line in lines(tmp_path)]
    best = 1 + scores.index(max(scores))
    assert {int(file.stem.split("-")[1]) for file in (tmp_path / "checkpoints").glob("ckpt-*.json")} == {best, 8}
    assert -1 < lines(tmp_path)[-1]["margin"] < 1


KNOWN = "must be a metric of the test split, which has loss, accuracy, precision, recall"
REFUSED = {
    "checkpoint.best.metric=recal": f"checkpoint.best.metric (recal) {KNOWN}; did you mean 'recall'?",
    "callbacks=early_stopping callbacks.early_stopping.metric=f1": f"callbacks.early_stopping.metric (f1) {KNOWN}",
    "+metrics.accuracy._target_=tests.toy_metrics.Margin": (
        "metrics.accuracy gives 'accuracy', which the task gives too; call one of them otherwise"
    ),
    " ".join(GAN): "metrics (per_class) cannot be had of Gan: the task has no predict_step; add one, or leave them out",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_measured_is_refused_before_anything_is_trained(tmp_path, command):
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, "metrics=per_class", "metrics.per_class.most_classes=0", *command.split())
    assert caught.value.problems == (REFUSED[command],)
