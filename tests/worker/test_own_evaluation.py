"""A user-defined task with its own evaluation, predictions and serving function."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.support.command_line import run_here
from tests.support.processes import log, only_run

OWN = '''
import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation
from trainer.protocols import Served


class Medians:
    """Evaluates by the median of the errors, which is no mean over examples."""

    def __init__(self, inference, source):
        self.predictor = inference.predict(source)

    def evaluate(self, stop_requested, enter=lambda phase: None):
        rows = [*self.predictor.predict(0, stop_requested, enter)]
        errors = [np.abs(row["prediction"][:, 0] - row["label"]) for row in rows]
        median = float(np.median(np.concatenate(errors)))
        return Evaluation({"median": median}, texts={"worst": [f"{median:.3f}"]})


class Own:
    """Needs no base class, and has neither eval_step nor what the kinds of tasks here have."""

    metrics = ("loss",)
    direction = {"median": "min"}

    def build(self, parts):
        self.models = {"model": parts.model(outputs=1)}
        self.optimizers = {"model": parts.optimizer()}

    def train_step(self, batch, step):
        return step.minimize(self.loss, batch, self.models["model"], self.optimizers["model"])

    def loss(self, batch):
        errors = self.predict_step(batch)["prediction"][:, 0] - tf.cast(batch["label"], tf.float32)
        return tf.square(errors), {}

    def predict_step(self, batch):
        return {"prediction": self.models["model"](batch["features"])}

    def make_evaluator(self, inference, source, predictor):
        return Medians(inference, source)

    def serve(self, dataset, sampling):
        def double(features):
            return {"doubled": 2 * self.models["model"](features)}

        spec = tf.TensorSpec([None, *dataset.input_shape], tf.float32, "features")
        function = tf.function(double, autograph=False).get_concrete_function(spec)
        return Served({"serving_default": function}, "It doubles.")
'''


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return what runs the command in a project that has the task."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text(OWN)

    def call(*options):
        outcome = run_here(
            "launch=inline", "task._target_=own.Own", "model=softmax", "train.steps=4",
            "train.epochs=null", "checkpoint.best.metric=median", "writers=[jsonl]", *options,
        )  # fmt: skip
        assert outcome.code == 0, outcome.out + outcome.err
        return outcome.out

    return call


@pytest.mark.slow
def test_own_evaluation_selects_and_own_function_is_exported(command, tmp_path):
    command()
    run_dir = only_run(tmp_path)
    (last,) = [line for line in log(run_dir) if line["split"] == "test"]
    assert json.loads((run_dir / "result.json").read_text())["best"]["step"] == 4
    assert f"median {last['median']:.6f}" in command("mode=evaluate")
    command("mode=predict")
    assert (run_dir / "predictions" / "test-4.csv").exists()
    command("mode=export")
    directory = run_dir / "export" / "model-4"
    assert "It doubles." in (directory / "MODEL_CARD.md").read_text()
    served = tf.saved_model.load(str(directory / "saved_model")).signatures["serving_default"]
    assert np.isfinite(served(features=tf.zeros([1, 8, 8, 1]))["doubled"]).all()
