"""Language models: each token is predicted from those before it, and texts can be continued."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, Evaluator, OfRows, Predictor, Rows
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.randomness.randomness import uniform
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.protocols import (
    Batch,
    Dataset,
    HasTokenizer,
    PerExample,
    Sampling,
    Served,
    Split,
    TaskParts,
    Tokenizer,
)
from trainer.tasks.supervised import OneModel

_USAGE = (
    'generate = model.signatures["generate"]',
    'length = generate.structured_input_signature[1]["features"].shape[1]',
    'prompt = list(b"The")  # tokens of your prompt',
    "features = tf.constant([prompt + [0] * (length - len(prompt))])",
    "size = tf.constant([len(prompt)])",
    "predictions = generate(features=features, size=size, id=tf.constant([0], tf.int64))",
)


class LanguageModel(OneModel):
    """Trains `model(features)`, logits [B, T, vocabulary], on the tokens `label`, [B, T] integers.

    The loss is the mean cross-entropy of a token, in nats; its exponential is the perplexity.
    """

    metrics = ("loss", "accuracy")
    derived_metrics = ("perplexity",)
    direction: ClassVar = {"loss": "min", "accuracy": "max", "perplexity": "min"}
    single_input = True
    primary_metric = "accuracy"
    reads_prompts = True

    def __init__(self) -> None:
        super().__init__()
        self._shape: list[int] | None = None

    def build(self, parts: TaskParts) -> None:
        self._shape = [*parts.input_shape, parts.num_classes]
        super().build(parts)

    def derive_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        loss = metrics["loss"]
        # Of more than 700 it is no float.
        return {**metrics, "perplexity": math.inf if loss > 700 else math.exp(loss)}

    def logits(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the logits of the token after each, [B, T, vocabulary] float32."""
        return self._logits(tokens, training=False)

    def make_predictor(self, inference: Inference, source: Source) -> Predictor | None:
        """Return what continues the prompts of mode=predict; None in other modes."""
        experiment, dataset = inference.experiment, inference.dataset
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
        return self._texts(inference, replace(source, split=split), dataset.tokenizer)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        """Return what evaluates a split, and continues some of its texts."""
        of_rows = inference.configured_metrics(predictor) or self._samples(inference, source)
        return inference.split_evaluator(source, of_rows)

    def _texts(self, inference: Inference, source: Source, tokenizer: Tokenizer) -> Predictor:
        """Return what predicts the tokens that follow the prompts of a split."""

        def step(batch: Batch) -> Batch:
            prompts, sizes = batch["prompt"], batch["prompt_size"]
            sampling = inference.experiment.predict.sampling
            text = continue_tokens(self.logits, prompts, sizes, batch["id"], sampling)
            return {"prompt": prompts, "prompt_size": sizes, "text": text}

        return inference.predict(source, step, tokenizer.decode)

    def _samples(self, inference: Inference, source: Source) -> tuple[Predictor, OfRows] | None:
        """Return what shows texts at each evaluation of a training, one at a time; None: no texts.

        They always follow the same prompts. There are no values; samples.txt has the newest texts.
        """
        dataset = inference.dataset
        count = min(inference.experiment.summary.texts, source.split.num_examples)
        if not (isinstance(dataset, HasTokenizer) and inference.experiment.trains and count):
            return None
        tokenizer = dataset.tokenizer
        split = SplitPrompts(source.split, count, max(1, dataset.input_shape[0] // 4))

        def of_rows(step: int, rows: Iterator[Rows]) -> Evaluation:
            texts = [
                tokenizer.decode([*prompt[:size].tolist(), *text.tolist()])
                for block in rows
                for prompt, size, text in zip(
                    block["prompt"], block["prompt_size"], block["text"], strict=True
                )
            ]
            parts = [f"step {step}, text {i}\n{text}\n" for i, text in enumerate(texts)]
            write_atomically(inference.run_dir / "samples.txt", "\n".join(parts))
            return Evaluation({}, texts={"samples": texts})

        one = replace(source, split=split, per_replica=1)
        return self._texts(inference, one, tokenizer), of_rows

    def serve(self, dataset: Dataset, sampling: Sampling) -> Served:
        """Return the functions from tokens to logits, and from prompts to tokens."""
        features = tf.TensorSpec([None, *dataset.input_shape], tf.int32, "features")

        def logits(features: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"logits": self.logits(features)}

        def generate(features: tf.Tensor, size: tf.Tensor, id: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"text": continue_tokens(self.logits, features, size, id, sampling)}

        functions = {
            "serving_default": tf.function(logits, autograph=False).get_concrete_function(features),
            "generate": tf.function(generate, autograph=False).get_concrete_function(
                features,
                tf.TensorSpec([None], tf.int32, "size"),
                tf.TensorSpec([None], tf.int64, "id"),
            ),
        }
        return Served(functions, _card(dataset.input_shape[0], sampling), _USAGE)

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        logits = self._logits(batch["features"], training=training)
        labels = batch["label"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        is_right = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
        is_right &= tf.math.is_finite(losses)
        accuracies = tf.reduce_mean(tf.cast(is_right, tf.float32), axis=-1)
        return tf.reduce_mean(losses, axis=-1), {"accuracy": accuracies}

    def _logits(self, tokens: tf.Tensor, *, training: bool) -> tf.Tensor:
        return self._call(
            tokens,
            training=training,
            shape=self._shape,
            fix="task=language_model needs a logit of each token of the vocabulary at each place; "
            "choose model=transformer and a dataset of tokens, such as dataset=text_windows",
        )


class SplitPrompts:
    """The first `size` tokens of a split's first `num_examples`, features [B, T] int32."""

    def __init__(self, split: Split, num_examples: int, size: int) -> None:
        self.num_examples = num_examples
        self.in_memory = split.in_memory
        self._split = split
        self._size = size

    def fetch(self, indices: tf.Tensor) -> Batch:
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
        return {
            "prompt": tf.gather(self._tokens, indices),
            "prompt_size": tf.gather(self._sizes, indices),
        }


def _card(length: int, sampling: Sampling) -> str:
    """Return the model card's text on the served functions."""
    among = "all" if sampling.top_k is None else f"the {sampling.top_k} most likely"
    return (
        f"- `serving_default`: `features`, [N, {length}] int32, tokens. It returns `logits`, "
        f"[N, {length}, tokens of the vocabulary] float32, of the token after each.\n"
        f"- `generate`: `features`, [N, {length}] int32, the tokens of a prompt and then any "
        "others; `size`, [N] int32, how many tokens the prompt has, at least one; `id`, [N] int64: "
        "another number is another text. It returns `text`, "
        f"[N, {sampling.tokens}] int32, the tokens that follow, chosen among {among} at "
        f"temperature {sampling.temperature:g}. To export other choices, add e.g. "
        "`predict.sampling.temperature=0.5`."
    )


def continue_tokens(
    logits: Callable[[tf.Tensor], tf.Tensor],
    prompts: tf.Tensor,
    sizes: tf.Tensor,
    numbers: tf.Tensor,
    sampling: Sampling,
) -> tf.Tensor:
    """Return the tokens that follow prompts, [B, sampling.tokens] int32.

    The model sees as many tokens as it was trained on; of a longer text it sees the last ones. The
    whole window is computed again for each token: simple, and right for any model.

    Args:
        logits: returns those of the token after each, [B, T, vocabulary], of [B, T] int32; they
            depend on no later token.
        prompts: [B, T] int32, the tokens of prompts and then any others.
        sizes: how many tokens a prompt has, [B] int32 in [1, T].
        numbers: [B] int64, of each text; its random numbers follow from this, the seed, and the
            position in the text.
    """
    length = prompts.shape[1]

    def one_token(
        index: tf.Tensor, window: tf.Tensor, sizes: tf.Tensor, chosen: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.TensorArray]:
        last = tf.gather(logits(window), sizes - 1, axis=1, batch_dims=1)
        token = _choose(last, index, numbers, sampling)
        is_full = (sizes == length)[:, None]
        window = tf.where(is_full, tf.roll(window, -1, axis=1), window)
        sizes = tf.minimum(sizes + 1, length)
        is_new = tf.range(length) == sizes[:, None] - 1
        window = tf.where(is_new, token[:, None], window)
        return index + 1, window, sizes, chosen.write(index, token)

    none = tf.TensorArray(tf.int32, sampling.tokens, element_shape=[prompts.shape[0]])
    _, _, _, chosen = tf.while_loop(
        lambda index, *_: index < sampling.tokens, one_token, (0, prompts, sizes, none)
    )
    return tf.transpose(chosen.stack())


def _choose(
    logits: tf.Tensor, index: tf.Tensor, numbers: tf.Tensor, sampling: Sampling
) -> tf.Tensor:
    """Return a token for each row of logits, [B] int32.

    The largest of logits and noise of a Gumbel distribution is a draw from their softmax (Gumbel
    1954; Maddison, Tarlow and Minka 2014).
    """
    vocabulary = int(logits.shape[-1])
    if sampling.top_k is not None and sampling.top_k < vocabulary:
        smallest = tf.math.top_k(logits, sampling.top_k).values[:, -1:]
        logits = tf.where(logits < smallest, tf.float32.min, logits)
    if sampling.temperature:
        positions = tf.fill(tf.shape(numbers), tf.cast(index, tf.int64))
        draws = uniform(sampling.seed, positions, numbers, vocabulary)
        # Half of the smallest step above 0, which has no logarithm.
        logits = logits / sampling.temperature - tf.math.log(-tf.math.log(draws + 2.0**-25))
    return tf.argmax(logits, axis=-1, output_type=tf.int32)
