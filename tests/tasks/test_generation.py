"""Texts token by token: windows that slide, and choices that follow from seed, text and place."""

import numpy as np
import tensorflow as tf

from trainer.config.schema import Sampling
from trainer.tasks.language_model import continue_tokens

VOCABULARY = 11


def next_number(tokens):
    """Return logits that say: after a token comes the sum of the window's first and it."""
    after = (tokens[:, :1] + tokens) % VOCABULARY
    return tf.one_hot(after, VOCABULARY, on_value=5.0)


def level(tokens):
    """Return logits log(1), log(2), ..., the same after each token."""
    rows = tf.math.log(tf.range(1.0, VOCABULARY + 1))
    return tf.broadcast_to(rows, [*tokens.shape, VOCABULARY])


def written(logits, prompts, sizes, **options):
    numbers = options.pop("numbers", range(len(sizes)))
    return continue_tokens(
        logits,
        tf.constant(prompts, tf.int32),
        tf.constant(sizes, tf.int32),
        tf.constant(list(numbers), tf.int64),
        Sampling(**options),
    ).numpy()


def test_most_likely_tokens_follow_a_window_that_slides():
    prompts = [[1, 2, 9, 9], [2, 3, 5, 7], [4, 0, 0, 0]]
    texts = written(next_number, prompts, [2, 4, 1], tokens=6, temperature=0.0)
    for prompt, size, text in zip(prompts, [2, 4, 1], texts, strict=True):
        tokens = prompt[:size]
        for token in text:
            window = tokens[-4:]
            assert token == (window[0] + window[-1]) % VOCABULARY
            tokens = [*tokens, int(token)]


def test_choices_have_the_probabilities_of_the_softmax():
    count = 400
    rows = [[0, 0]] * count
    for temperature, power in ((1.0, 1.0), (0.5, 2.0)):
        texts = written(level, rows, [1] * count, tokens=20, temperature=temperature)
        shares = np.bincount(texts.ravel(), minlength=VOCABULARY) / texts.size
        wanted = np.arange(1, VOCABULARY + 1) ** power
        np.testing.assert_allclose(shares, wanted / wanted.sum(), atol=0.02)


def test_top_k_leaves_the_most_likely_tokens():
    texts = written(level, [[0, 0]] * 50, [2] * 50, tokens=8, temperature=3.0, top_k=3)
    assert set(texts.ravel()) == {8, 9, 10}


def test_text_depends_on_seed_and_number_and_not_on_its_neighbors():
    rows = [[0, 0]] * 4
    texts = written(level, rows, [1, 2, 1, 1], tokens=12, temperature=1.0)
    assert len({tuple(text) for text in texts}) == 4
    last = written(level, rows[:2], [1, 2], tokens=12, temperature=1.0, numbers=[3, 1])
    np.testing.assert_array_equal(last, texts[[3, 1]])
    other = written(level, rows, [1, 2, 1, 1], tokens=12, temperature=1.0, seed=1)
    assert (other != texts).any(axis=1).all()
