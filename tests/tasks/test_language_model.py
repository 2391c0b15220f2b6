"""The language-model task: its metrics by hand, and the same bits however a run is cut."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import recipe
from trainer.engine.engine import Engine
from trainer.engine.graph.step.metric_sums import metric_names, unpack
from trainer.errors import ConfigError
from trainer.tasks.language_model import LanguageModel

SMALL = [
    "task=language_model",
    "model=transformer",
    "dataset=sentences",
    "dataset.characters=2000",
    "dataset.length=8",
    "model.width=8",
    "model.hidden=8",
    "model.heads=2",
    "model.layers=1",
    "batch.global_size=16",
    "train.steps=6",
    "train.epochs=null",
    "writers=[jsonl]",
]


def engine(run_dir: Path, *overrides: str) -> Engine:
    return recipe(run_dir, *SMALL, *overrides)


def test_loss_and_accuracy_are_means_over_tokens() -> None:
    task = LanguageModel()
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    task.models = {"model": lambda tokens, training: tf.constant(logits)}  # type: ignore[dict-item]
    labels = np.array([[0, 1, 2], [4, 4, 4]])
    losses, metrics = task.eval_step(
        {"features": tf.zeros([2, 3], tf.int32), "label": tf.constant(labels)}
    )
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = -np.log(np.take_along_axis(shares, labels[..., None], -1))[..., 0]
    np.testing.assert_allclose(losses, wanted.mean(1), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (logits.argmax(-1) == labels).mean(1))


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    task = LanguageModel()
    assert metric_names(task) == ["loss", "accuracy", "perplexity"]
    values = unpack(task, [6.0, 4.0, 1.0, 4.0])
    assert values == {"loss": 1.5, "accuracy": 0.25, "perplexity": math.exp(1.5)}
    assert unpack(task, [4000.0, 4.0, 1.0, 4.0])["perplexity"] == math.inf
    assert math.isnan(unpack(task, [0.0, 0.0, 0.0, 0.0])["perplexity"])


@pytest.mark.slow
def test_evaluation_has_the_perplexity_of_all_tokens(tmp_path: Path) -> None:
    run = engine(tmp_path, "checkpoint.best.metric=perplexity", "checkpoint.best.mode=min")
    run.train(lambda: False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in lines if line["split"] == "test"]
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]), rel=1e-12)
    assert last["loss"] < math.log(256)


@pytest.mark.slow
def test_model_without_logits_for_each_token_is_refused(tmp_path: Path) -> None:
    run = engine(tmp_path, "model=transformer_encoder", "model.width=8", "model.hidden=8")
    with pytest.raises(ConfigError, match=r"returns \[B, \d+\]; task=language_model needs a logit"):
        run.train(lambda: False)
