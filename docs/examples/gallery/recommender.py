"""After keras.io's "Collaborative Filtering for Movie Recommendations": two embeddings multiplied.

Changed for Steadfast: the model and the data are made by functions, and `model.fit(...)` became
`conf/experiment/recommender.yaml`. The subclassed model stays but for its product: there
`tensordot(user, movie, 2)` is one number for the whole batch, here each rating has its own.
"""

import keras
import numpy as np
from keras import layers, ops

USERS, MOVIES = 300, 200


class RecommenderNet(keras.Model):
    """Guesses a rating from the embeddings and biases of a user and a movie."""

    def __init__(self, users, movies, width, **options):
        super().__init__(**options)
        self.user_embedding = self._embedding(users, width)
        self.user_bias = layers.Embedding(users, 1)
        self.movie_embedding = self._embedding(movies, width)
        self.movie_bias = layers.Embedding(movies, 1)

    def _embedding(self, count, width):
        return layers.Embedding(
            count,
            width,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )

    def call(self, inputs):
        user, movie = inputs["user"], inputs["movie"]
        product = ops.sum(
            self.user_embedding(user) * self.movie_embedding(movie), axis=-1, keepdims=True
        )
        return ops.sigmoid(product + self.user_bias(user) + self.movie_bias(movie))


def model():
    """Return the compiled recommender."""
    network = RecommenderNet(USERS, MOVIES, 16)
    network.compile(
        loss=keras.losses.BinaryCrossentropy(),
        optimizer=keras.optimizers.Adam(learning_rate=0.003),
        metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
    )
    return network


def data():
    """Return numbers of users and movies, and the ratings [N] in [0, 1]: to train, and to test."""
    random = np.random.default_rng(0)
    tastes, styles = random.normal(size=[USERS, 3]), random.normal(size=[MOVIES, 3])
    pairs = random.permutation(USERS * MOVIES)[:20_000]
    user, movie = pairs // MOVIES, pairs % MOVIES
    liking = (tastes[user] * styles[movie]).sum(axis=1) + random.normal(0, 0.5, len(pairs))
    stars = np.clip(np.round(2.5 + liking), 0, 5) / 5

    def part(rows):
        return {"user": user[rows], "movie": movie[rows]}, stars[rows]

    return part(slice(16_000)), part(slice(16_000, None))
