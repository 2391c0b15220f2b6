"""After keras.io's "Text classification with Transformer": a block that attends to all words.

Changed for Steadfast: the model and the data are made by functions, and `model.fit(...)` became
`conf/experiment/text_transformer.yaml`. The layers, the model and its `compile` stay.
"""

import keras
import numpy as np
from keras import layers, ops

PLEASED = ("good", "fine", "great", "lovely", "clever", "moving")
BORED = ("bad", "dull", "poor", "weak", "silly", "boring")
SUBJECTS = ("film", "plot", "cast", "music", "ending", "scene")
WORDS = ("", "the", "was", "not", "but", "very", *SUBJECTS, *PLEASED, *BORED)
LENGTH = 16


class TransformerBlock(layers.Layer):
    """Attention and two dense layers, each added to its input and normalized."""

    def __init__(self, width, heads, hidden, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width)
        self.network = keras.Sequential(
            [layers.Dense(hidden, activation="relu"), layers.Dense(width)]
        )
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        middle = self.norm1(inputs + self.dropout1(self.attention(inputs, inputs)))
        return self.norm2(middle + self.dropout2(self.network(middle)))


class TokenAndPosition(layers.Layer):
    """The embedding of each word plus that of its place."""

    def __init__(self, length, vocabulary, width):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = layers.Embedding(length, width)

    def call(self, inputs):
        return self.tokens(inputs) + self.positions(ops.arange(ops.shape(inputs)[-1]))


def model():
    """Return the compiled classifier."""
    inputs = keras.Input([LENGTH], dtype="int32")
    x = TokenAndPosition(LENGTH, len(WORDS), 32)(inputs)
    x = TransformerBlock(width=32, heads=2, hidden=32)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.1)(x)
    x = layers.Dense(20, activation="relu")(x)
    x = layers.Dropout(0.1)(x)
    network = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    network.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return network


def review(random):
    """Return the words of a review by number, and 1 if its last clause is pleased, else 0.

    One label in twenty is wrong.
    """
    words = []
    for _ in range(2):
        pleased, negated = random.random(2) < (0.5, 0.3)
        words += ["but"] if words else []
        words += ["the", random.choice(SUBJECTS), "was", *(["not"] if negated else ["very"])]
        words += [random.choice(PLEASED if pleased else BORED)]
    return [WORDS.index(word) for word in words], int(
        (pleased != negated) == (random.random() < 0.95)
    )


def data():
    """Return reviews [N, 16] int32 and their labels: to train, and to test."""
    random = np.random.default_rng(0)
    texts, labels = zip(*(review(random) for _ in range(5000)), strict=True)
    tokens = keras.utils.pad_sequences(texts, maxlen=LENGTH)
    labels = np.array(labels)
    return (tokens[:4000], labels[:4000]), (tokens[4000:], labels[4000:])
