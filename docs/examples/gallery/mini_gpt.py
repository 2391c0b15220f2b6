"""After keras.io's "Text generation with a miniature GPT": causal attention, and a sampler.

Changed for Steadfast: the model, the vocabulary and the data are made by functions, `fit(...)`
became `conf/experiment/mini_gpt.yaml`, which names the sampler too; a seed makes the texts that it
writes repeat. The layers, the model with its two outputs, its `compile` and the sampler stay.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LENGTH = 20
WIDTH = 32
SINGULAR = ("cat", "dog", "child", "king", "robot", "poet")
SEEN = ("sees", "hears", "finds", "follows", "greets", "paints")
DOES = ("sings", "sleeps", "waits", "laughs", "leaves", "dreams")
TAILS = ("at night", "in the garden", "by the river", "all day")


def sentence(random):
    """Return a sentence of two clauses, such as: the dogs see a cat and wait by the river ."""
    subject, seen, does, thing = (
        random.choice(words) for words in (SINGULAR, SEEN, DOES, SINGULAR)
    )
    if random.random() < 0.5:  # a plural, with which the verbs agree
        subject = {"child": "children"}.get(subject, f"{subject}s")
        seen, does = seen.removesuffix("s"), does.removesuffix("s")
    return f"the {subject} {seen} a {thing} and {does} {random.choice(TAILS)} ."


def texts(count, seed):
    """Return texts of two sentences."""
    random = np.random.default_rng(seed)
    return [f"{sentence(random)} {sentence(random)}" for _ in range(count)]


WORDS = ["", "[UNK]", *sorted(set(" ".join(texts(500, seed=0)).split()))]


def vectorized():
    """Return the layer that makes numbers of words."""
    return layers.TextVectorization(
        standardize=None, output_sequence_length=LENGTH + 1, vocabulary=WORDS[2:]
    )


def batches(count, seed):
    """Return batches of words by number, and of the words that follow them."""
    to_numbers = vectorized()

    def labeled(text):
        tokens = to_numbers(text)
        return tokens[:, :-1], tokens[:, 1:]

    return tf.data.Dataset.from_tensor_slices(texts(count, seed)).batch(64).map(labeled)


def train():
    """Return batches of 3,200 texts."""
    return batches(3200, seed=1)


def test():
    """Return batches of 320 other texts."""
    return batches(320, seed=2)


def causal_mask(batch_size, length):
    """Return which words each word may attend to: [batch_size, length, length] bool."""
    mask = ops.arange(length)[:, None] >= ops.arange(length)
    return ops.tile(mask[None], [batch_size, 1, 1])


class TransformerBlock(layers.Layer):
    """Attention to earlier words and two dense layers, each added to its input and normalized."""

    def __init__(self, width, heads, hidden, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width)
        self.network = keras.Sequential(
            [layers.Dense(hidden, activation="relu"), layers.Dense(width)]
        )
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        mask = causal_mask(ops.shape(inputs)[0], ops.shape(inputs)[1])
        attended = self.attention(inputs, inputs, attention_mask=mask)
        middle = self.norm1(inputs + self.dropout1(attended))
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
    """Return the compiled network, whose second output has no loss."""
    inputs = layers.Input([LENGTH], dtype="int32")
    x = TokenAndPosition(LENGTH, len(WORDS), WIDTH)(inputs)
    x = TransformerBlock(WIDTH, heads=2, hidden=WIDTH)(x)
    network = keras.Model(inputs, [layers.Dense(len(WORDS))(x), x])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile("adam", loss=[loss, None])
    return network


class TextGenerator(keras.callbacks.Callback):
    """Writes a text at the end of each epoch, from the ten likeliest words each time."""

    def __init__(self, prompt="the", words=12, best=10):
        super().__init__()
        self.prompt = prompt
        self.words = words
        self.best = best

    def on_epoch_end(self, epoch, logs=None):
        random = np.random.default_rng(epoch)
        tokens = [WORDS.index(word) for word in self.prompt.split()]
        while len(tokens) < self.words:
            padded = np.array([tokens + [0] * (LENGTH - len(tokens))])
            logits = self.model.predict(padded, verbose=0)[0][0, len(tokens) - 1]
            best = np.argsort(logits)[-self.best :]
            shares = np.exp(logits[best] - logits.max())
            tokens.append(int(random.choice(best, p=shares / shares.sum())))
        print(f"epoch {epoch}:", " ".join(WORDS[token] for token in tokens))
