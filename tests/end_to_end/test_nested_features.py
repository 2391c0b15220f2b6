"""Features and labels that are several arrays, texts among them, in every part of a run."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.outputs import export_run, served
from tests.support.processes import ROOT, run
from tests.support.training import recipe
from trainer.errors import ConfigError

OWN = "tests.programs.columns"
TRAINING = (
    f"model._target_={OWN}.net", f"task._target_={OWN}.TwoLosses", "train.steps=6",
    "batch.global_size=16", "checkpoint.every_steps=2", "writers=[jsonl]",
)  # fmt: skip
CHOICES = ("model=softmax", "~model.l2", "optimizer=adam")
ARRAYS = (*CHOICES, "dataset=arrays", f"dataset.data._target_={OWN}.columns", *TRAINING)


def finished(directory, *overrides):
    """Train to the end in this process; return the engine."""
    engine = recipe(directory, *overrides)
    assert engine.train(lambda: False)
    return engine


def test_columns_are_trained_evaluated_predicted_and_exported(tmp_path):
    engine = finished(tmp_path, *ARRAYS)
    assert engine.split == "validation"
    rows = next(engine.predictor.predict())
    assert {"id", "weight", "label_price", "label_sold", "price", "sold"} == set(rows)
    batch = engine.predictor.source.split.fetch(tf.range(3, dtype=tf.int64))
    assert rows["label_price"][:3].tolist() == batch["label"]["price"].numpy().tolist()

    directory = export_run(tmp_path, *ARRAYS)
    predicted = served(directory)(**batch["features"])
    assert set(predicted) == {"price", "sold"}
    np.testing.assert_allclose(predicted["sold"], rows["sold"][:3], rtol=1e-5)
    card = (directory / "MODEL_CARD.md").read_text()
    assert "`age`, [N] int64; `color`, [N] string; `size`, [N, 3] float32" in card


def test_other_examples_are_refused_when_a_run_is_continued(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text('{"argv": []}')  # as the command makes it
    stopped = recipe(tmp_path, *ARRAYS)
    assert not stopped.train(lambda: stopped.step >= 2)
    monkeypatch.setenv("COLUMNS_SEED", "1")
    with pytest.raises(ConfigError, match="not the same with which the run has been"):
        recipe(tmp_path, *ARRAYS)
    assert recipe(tmp_path, *ARRAYS, "mode=evaluate")  # which trains on none


REFUSED = {
    "jit=true": r"jit \(true\) compiles no texts",
    "summary.images=2": r"needs features that are images, .* age int64\[\], color string\[\], si",
    "task=segmentation": r"task \(Segmentation\) needs features that are one tensor .* are age in",
    "model._target_=trainer.models.softmax.softmax": r"model \(.*softmax\) needs features that",
}


@pytest.mark.parametrize("option", REFUSED)
def test_option_that_cannot_work_is_refused_in_one_line(tmp_path, option):
    data = [word for word in ARRAYS if not (word.startswith("task.") and "task=" in option)]
    with pytest.raises(ConfigError, match=REFUSED[option]) as caught:
        recipe(tmp_path, *data, option)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_workers_of_different_examples_are_refused(tmp_path):
    drawn = ("strategy=multi_worker", "strategy.workers=2", f"dataset.data._target_={OWN}.drawn")
    code, out, err = run(tmp_path, *ARRAYS, *drawn, PYTHONPATH=str(ROOT))
    assert code == 2, f"{out}\n{err}"
    assert "the training examples are not the same in all processes; its function" in err
