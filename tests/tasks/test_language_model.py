"""The language-model task: its metrics by hand, and the texts that it writes."""

import csv
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.outputs import export_run, served
from tests.support.training import recipe
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.datasets.texts.tokens import load_tokenizer
from trainer.engine.graph.step.metric_sums import metric_names, unpack
from trainer.errors import ConfigError
from trainer.tasks.language_model import FilePrompts, LanguageModel
from trainer.worker.predict.predict import predict
from trainer.worker.training import TrainingRun

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


def engine(run_dir, *overrides):
    return recipe(run_dir, *SMALL, *overrides)


def test_loss_and_accuracy_are_means_over_tokens():
    task = LanguageModel()
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    task.models = {"model": lambda tokens, training: tf.constant(logits)}
    labels = np.array([[0, 1, 2], [4, 4, 4]])
    losses, metrics = task.eval_step(
        {"features": tf.zeros([2, 3], tf.int32), "label": tf.constant(labels)}
    )
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = -np.log(np.take_along_axis(shares, labels[..., None], -1))[..., 0]
    np.testing.assert_allclose(losses, wanted.mean(1), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (logits.argmax(-1) == labels).mean(1))


def test_perplexity_is_the_exponential_of_the_mean_loss():
    task = LanguageModel()
    assert metric_names(task) == ["loss", "accuracy", "perplexity"]
    values = unpack(task, [6.0, 4.0, 1.0, 4.0])
    assert values == {"loss": 1.5, "accuracy": 0.25, "perplexity": math.exp(1.5)}
    assert unpack(task, [4000.0, 4.0, 1.0, 4.0])["perplexity"] == math.inf
    assert math.isnan(unpack(task, [0.0, 0.0, 0.0, 0.0])["perplexity"])


QUIET = Channel(lambda message: None)
SAMPLING = ["predict.sampling.tokens=12", "predict.sampling.top_k=40"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A trained run, with TensorBoard's files."""
    run_dir = tmp_path_factory.mktemp("run")
    options = [*SMALL, *SAMPLING, "writers=[tensorboard]", "summary.texts=2"]
    TrainingRun(compose(options), run_dir, QUIET).engine.train(lambda: False)
    return run_dir


def table(run_dir, path, *overrides):
    """Return the rows that mode=predict writes for the newest checkpoint."""
    experiment = compose([*SMALL, *SAMPLING, "mode=predict", f"predict.path={path}", *overrides])
    run = TrainingRun(experiment, run_dir, QUIET)
    run.engine.checkpointer.restore(6)
    assert predict(run, 6, lambda: False)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_prompts_are_the_lines_of_a_file(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("abc\n\nabcdefgh\n")
    tokenizer = load_tokenizer("bytes")
    prompts = FilePrompts(str(file), tokenizer, 5)
    batch = prompts.fetch(tf.constant([1, 0], tf.int64))
    assert batch["prompt_size"].numpy().tolist() == [5, 3]
    assert bytes(batch["prompt"][0].numpy().tolist()) == b"defgh"
    assert bytes(batch["prompt"][1].numpy().tolist()) == b"abc\0\0"
    file.write_text("\n")
    with pytest.raises(ConfigError, match=r"predict.prompts \(.*\) must have a prompt of at least"):
        FilePrompts(str(file), tokenizer, 5)


@pytest.mark.slow
def test_evaluation_shows_texts(run_dir):
    texts = (run_dir / "samples.txt").read_text(errors="replace").split("step 6, text ")
    assert len(texts) == 3
    data = compose([*SMALL]).dataset
    assert data["length"] == 8  # of which a quarter is the prompt
    events = EventAccumulator(str(run_dir / "events"))
    events.Reload()
    (event,) = events.Tensors("samples/test")
    assert (event.step, event.tensor_proto.tensor_shape.dim[0].size) == (6, 2)
    shown = event.tensor_proto.string_val[0].decode()
    assert shown.startswith("    ")
    assert shown.removeprefix("    ").split("\n")[0] in texts[1]


@pytest.mark.slow
def test_exported_model_writes_the_texts_of_the_table(run_dir, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("The\nAda said that\n")
    # A replica predicts 16 texts at a time, and the export as many.
    rows = table(run_dir, tmp_path / "table.csv", f"predict.prompts={file}")
    assert [row["prompt"] for row in rows] == ["The", "aid that"]  # the model sees 8 tokens
    saved = export_run(run_dir, *SMALL, *SAMPLING)
    features = np.zeros([16, 8], np.int32)
    features[0, :3] = list(b"The")
    features[1] = list(b"aid that")
    size = np.full([16], 3, np.int32)
    size[1] = 8
    number = np.zeros([16], np.int64)
    number[1] = 1
    texts = served(saved, "generate")(
        features=tf.constant(features), size=tf.constant(size), id=tf.constant(number)
    )["text"].numpy()
    decode = load_tokenizer("bytes").decode
    assert [decode(text.tolist()) for text in texts[:2]] == [row["text"] for row in rows]
    logits = served(saved)(features=tf.constant(features))["logits"]
    assert (logits.shape, logits.dtype) == ((16, 8, 256), tf.float32)
    assert "`generate`: `features`, [N, 8] int32" in (saved / "MODEL_CARD.md").read_text()
