"""Texts token by token, from a model of the next one.

The model sees as many tokens as it was trained on; of a longer text it sees the last ones. The
whole window is computed again for each token: simple, and right for any model.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.engine.graph.randomness.randomness import uniform
from trainer.protocols import Sampling


def continue_tokens(
    logits: Callable[[tf.Tensor], tf.Tensor],
    prompts: tf.Tensor,
    sizes: tf.Tensor,
    numbers: tf.Tensor,
    sampling: Sampling,
) -> tf.Tensor:
    """Return the tokens that follow prompts, [B, sampling.tokens] int32.

    Args:
        logits: returns those of the token after each, [B, T, vocabulary], of [B, T] int32; they
            depend on no later token.
        prompts: [B, T] int32, the tokens of prompts and then any others.
        sizes: how many tokens a prompt has, [B] int32 in [1, T].
        numbers: [B] int64, of each text; its random numbers follow from this, the seed, and the
            position in the text.
        sampling: how tokens are chosen.
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
