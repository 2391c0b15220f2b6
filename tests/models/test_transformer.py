"""Transformers: what a token sees, padding, tied embeddings, and saving."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.models.transformer import transformer
from trainer.models.transformer_encoder import transformer_encoder

SMALL: dict[str, Any] = {"vocabulary": 11, "layers": 2, "width": 8, "heads": 2, "hidden": 16}
TOKENS = np.array([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]], np.int32)


def test_decoder_sees_no_later_token() -> None:
    model = transformer((6,), 11, **SMALL)
    logits = model(TOKENS, training=False).numpy()
    assert (logits.shape, logits.dtype) == ((2, 6, 11), np.float32)
    changed = TOKENS.copy()
    changed[:, 4:] = 9
    others = model(changed, training=False).numpy()
    np.testing.assert_allclose(others[:, :4], logits[:, :4], atol=1e-6)
    assert np.abs(others[:, 4:] - logits[:, 4:]).max() > 1e-3


def test_encoder_does_not_see_padding() -> None:
    model = transformer_encoder((6,), 3, **SMALL)
    embedding = model.get_layer("embedding").tokens
    tokens = np.array([[1, 2, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.int32)
    before = model(tokens, training=False).numpy()
    assert (before.shape, before.dtype) == ((2, 3), np.float32)
    assert np.isfinite(before).all()
    embedding.assign(tf.tensor_scatter_nd_add(embedding, [[0]], tf.ones([1, 8])))
    after = model(tokens, training=False).numpy()
    np.testing.assert_allclose(after[0], before[0], atol=1e-6)


def test_tied_logits_use_the_embedding_of_tokens() -> None:
    tied = transformer((6,), 10, **SMALL)
    free = transformer((6,), 10, tied=False, **SMALL)
    assert tied.output_shape == free.output_shape == (None, 6, 10)
    assert free.count_params() - tied.count_params() == 8 * 10 + 10
    x = tied.get_layer("norm").output
    hidden = tf.keras.Model(tied.input, x)(TOKENS, training=False)
    expected = hidden.numpy() @ tied.get_layer("embedding").tokens.numpy()[:10].T
    np.testing.assert_allclose(tied(TOKENS, training=False), expected, atol=1e-5)


@pytest.mark.parametrize("build", [transformer, transformer_encoder])
def test_saved_model_of_keras_is_the_same_model(tmp_path: Path, build: Any) -> None:
    model = build((6,), 11, **SMALL)
    model.save(tmp_path / "model.h5")
    loaded = tf.keras.models.load_model(tmp_path / "model.h5", compile=False)
    np.testing.assert_allclose(loaded(TOKENS), model(TOKENS), atol=1e-6)
