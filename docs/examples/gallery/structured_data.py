"""After keras.io's "Structured data classification with FeatureSpace": columns of patients.

Changed for Steadfast: the model and the data are made by functions, and `model.fit(...)` became
`conf/experiment/structured_data.yaml`. The model that is trained takes the columns as they are,
which there is made in the end; so what `FeatureSpace` has learned is kept and exported with it. The
features, how they are adapted, the model and its `compile` stay.
"""

import keras
import numpy as np
import tensorflow as tf


def columns(count, seed):
    """Return columns of patients, and whether each is ill."""
    random = np.random.default_rng(seed)
    age = random.integers(29, 78, count)
    pressure = random.normal(130, 17, count)
    pain = random.choice(["none", "typical", "atypical", "other"], count)
    vessels = random.integers(0, 4, count)
    thal = random.choice(["normal", "fixed", "reversible"], count, p=[0.5, 0.1, 0.4])
    risk = 0.05 * (age - 53) + 0.03 * (pressure - 130) + 0.9 * (vessels - 1.5)
    risk += np.select([pain == "none", pain == "typical"], [1.5, -1.0], 0.0)
    risk += np.where((thal == "reversible") & (age > 50), 2.5, -1.0)
    ill = random.random(count) < 1 / (1 + np.exp(-1.5 * risk))
    x = {"age": age, "pressure": pressure, "pain": pain, "vessels": vessels, "thal": thal}
    return x, ill.astype("int64")


def train():
    """Return batches of 2,000 patients: columns by name and labels."""
    return tf.data.Dataset.from_tensor_slices(columns(2000, seed=0)).shuffle(2000, seed=0).batch(32)


def test():
    """Return batches of 500 others."""
    return tf.data.Dataset.from_tensor_slices(columns(500, seed=1)).batch(32)


def model():
    """Return the compiled model of the columns."""
    space = keras.utils.FeatureSpace(
        features={
            "age": keras.utils.FeatureSpace.float_discretized(num_bins=20),
            "pressure": "float_normalized",
            "pain": keras.utils.FeatureSpace.string_categorical(num_oov_indices=0),
            "vessels": keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
            "thal": keras.utils.FeatureSpace.string_categorical(num_oov_indices=0),
        },
        crosses=[
            keras.utils.FeatureSpace.cross(feature_names=("thal", "age"), crossing_dim=64),
        ],
        output_mode="concat",
    )
    space.adapt(train().map(lambda x, _: x))
    encoded = space.get_encoded_features()
    x = keras.layers.Dense(32, activation="relu")(encoded)
    x = keras.layers.Dropout(0.5)(x)
    network = keras.Model(space.get_inputs(), keras.layers.Dense(1, activation="sigmoid")(x))
    network.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
    return network
