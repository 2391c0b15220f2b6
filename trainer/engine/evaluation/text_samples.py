"""What a language model writes: for the prompts of a file or of a dataset, and while it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, ExtraMetrics
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.protocols import Batch, HasTokenizer, Sampling, Split, Tokenizer

FILE = "samples.txt"
"""File of the newest texts, in the run directory."""


class WritesText(Protocol):
    """A task whose first model predicts tokens, and which can continue texts."""

    def continue_text(
        self, prompts: tf.Tensor, sizes: tf.Tensor, numbers: tf.Tensor, sampling: Sampling
    ) -> tf.Tensor:
        """Return the tokens that follow prompts, [B, sampling.tokens] int32.

        A text depends on its prompt, its number and the sampling, not on the others of a batch.

        Args:
            prompts: [B, T] int32, the tokens of prompts and then any others.
            sizes: how many tokens a prompt has, [B] int32 in [1, T].
            numbers: [B] int64; texts of different numbers have different random numbers.
        """


class SplitPrompts:
    """The first `size` tokens of a split's first `num_examples`, features [B, T] int32."""

    def __init__(self, split: Split, num_examples: int, size: int) -> None:
        self.num_examples = num_examples
        self.in_memory = split.in_memory
        self._split = split
        self._size = size

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return `prompt` [B, T] int32 and `prompt_size` [B] int32."""
        tokens = self._split.fetch(indices)["features"]
        return {"prompt": tokens, "prompt_size": tf.fill(tf.shape(indices), self._size)}


class FilePrompts:
    """Prompts in a text file, one on each line.

    Args:
        path: the file, UTF-8; empty lines are left out.
        length: how many tokens a model sees; of longer prompts these are the last.

    Raises:
        ConfigError: there is no prompt in the file.
    """

    in_memory = True

    def __init__(self, path: str, tokenizer: Tokenizer, length: int) -> None:
        try:
            lines = Path(path).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"predict.prompts ({path}) cannot be read: {error}") from error
        encoded = [list(tokens)[-length:] for tokens in tokenizer.encode([*filter(None, lines)])]
        if not encoded or not all(encoded):
            raise ConfigError(
                f"predict.prompts ({path}) must have a prompt of at least one token on each line"
            )
        self.num_examples = len(encoded)
        self._sizes = np.array([len(tokens) for tokens in encoded], np.int32)
        self._tokens = np.zeros([len(encoded), length], np.int32)
        for row, tokens in zip(self._tokens, encoded, strict=True):
            row[: len(tokens)] = tokens

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return `prompt` [B, length] int32 and `prompt_size` [B] int32."""
        return {
            "prompt": tf.gather(self._tokens, indices),
            "prompt_size": tf.gather(self._sizes, indices),
        }


@dataclass(eq=False)
class TextWriter:
    """Predicts for each prompt the tokens that follow it.

    It stands for the task and for the dataset of a prediction loop.
    """

    task: WritesText
    sampling: Sampling

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Return the batch."""
        return batch

    def predict_step(self, batch: Batch) -> Batch:
        """Return `text`, [B, tokens] int32, and the prompts."""
        prompts = batch["prompt"]
        sizes = batch["prompt_size"]
        text = self.task.continue_text(prompts, sizes, batch["id"], self.sampling)
        return {"prompt": prompts, "prompt_size": sizes, "text": text}


def text_predictor(task: WritesText, inference: Inference, source: Source) -> Predictor | None:
    """Return what continues the prompts of mode=predict; None in other modes.

    Raises:
        ConfigError: the dataset has no tokenizer, or there is no prompt in the file.
    """
    experiment = inference.experiment
    dataset = inference.dataset
    if experiment.mode != "predict":
        return None
    if not isinstance(dataset, HasTokenizer):
        raise ConfigError(
            "mode (predict) needs a dataset with a `tokenizer`, to read and write texts; "
            f"{experiment.dataset['_target_']} makes none"
        )
    (length,) = dataset.input_shape
    split: Split = SplitPrompts(source.split, source.split.num_examples, length)
    if experiment.predict.prompts is not None:
        split = FilePrompts(experiment.predict.prompts, dataset.tokenizer, length)
    writer = TextWriter(task, experiment.predict.sampling)
    return inference.predict_by(writer, source, split, dataset.tokenizer.decode)


def text_samples(task: WritesText, inference: Inference, source: Source) -> ExtraMetrics | None:
    """Return what shows texts at each evaluation of a training, one at a time; None: no texts.

    They always follow the same prompts. There are no values; a file has the newest texts.
    """
    experiment = inference.experiment
    dataset = inference.dataset
    count = min(experiment.summary.texts, source.split.num_examples)
    if not (isinstance(dataset, HasTokenizer) and experiment.trains and count):
        return None
    split = SplitPrompts(source.split, count, max(1, dataset.input_shape[0] // 4))
    decode = dataset.tokenizer.decode

    def judge(step: int, rows: Iterator[Mapping[str, np.ndarray]]) -> Evaluation:
        texts = [
            decode([*prompt[:size].tolist(), *text.tolist()])
            for block in rows
            for prompt, size, text in zip(
                block["prompt"], block["prompt_size"], block["text"], strict=True
            )
        ]
        parts = [f"step {step}, text {i}\n{text}\n" for i, text in enumerate(texts)]
        write_atomically(inference.run_dir / FILE, "\n".join(parts))
        return Evaluation({}, texts={"samples": texts})

    writer = TextWriter(task, experiment.predict.sampling)
    predictor = inference.predict_by(writer, replace(source, per_replica=1), split, decode)
    return inference.extra_metrics(judge, predictor)
