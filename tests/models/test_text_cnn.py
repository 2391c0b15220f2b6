import numpy as np
import tensorflow as tf

from trainer.models.text_cnn import text_cnn


def test_logits_are_the_maxima_over_the_text() -> None:
    model = text_cnn((6,), 3, vocabulary=5, width=4, kernels=[1], dropout=0.5)
    tokens = tf.constant([[1, 2, 3, 4, 0, 0], [4, 3, 2, 1, 0, 0]])
    logits = model(tokens, training=False)
    assert (logits.shape, logits.dtype) == ((2, 3), tf.float32)
    # Kernels of one token do not see the order.
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-6)
    embedded = tf.nn.embedding_lookup(model.get_layer("embedding").embeddings, tokens[0])
    maxima = tf.reduce_max(model.get_layer("conv0")(embedded[None]), axis=1)
    np.testing.assert_allclose(model.get_layer("logits")(maxima)[0], logits[0], atol=1e-6)
