"""After keras.io's "Timeseries forecasting for weather prediction": an LSTM over windows.

Changed for Steadfast: the model and the data are made by functions, and `model.fit(...)` with its
`EarlyStopping` and `ModelCheckpoint` became `conf/experiment/weather.yaml`. The windows, the model
and its `compile` stay.
"""

import keras
import numpy as np

PAST, FUTURE, STEP = 72, 12, 6
BATCH = 64


def measured():
    """Return temperature, pressure and humidity of 5,000 hours, [5000, 3], each normalized."""
    random = np.random.default_rng(0)
    hours = np.arange(5000)
    noise = np.zeros([5000, 3])
    for hour in range(1, 5000):
        noise[hour] = 0.98 * noise[hour - 1] + random.normal(0, 0.25, 3)
    daily, yearly = np.sin(2 * np.pi * hours / 24), np.sin(2 * np.pi * hours / 4000)
    temperature = 10 + 6 * yearly + 4 * daily + noise[:, 0] - noise[:, 1]
    pressure = 990 + 4 * np.roll(noise[:, 1], -FUTURE)
    humidity = 70 - 10 * daily + 3 * noise[:, 2]
    series = np.stack([temperature, pressure, humidity], axis=1)
    return (series - series[:4000].mean(axis=0)) / series[:4000].std(axis=0)


def windows(first, last):
    """Return batches of what is measured in three days, and of the temperature 12 hours later."""
    series = measured()[first:last]
    return keras.utils.timeseries_dataset_from_array(
        series[: -PAST - FUTURE + 1],
        series[PAST + FUTURE - 1 :, :1],
        sequence_length=PAST // STEP,
        sampling_rate=STEP,
        batch_size=BATCH,
        shuffle=False,
    )


def train():
    """Return windows of the first 4,000 hours."""
    return windows(0, 4000)


def test():
    """Return windows of the last 1,000 hours."""
    return windows(4000, 5000)


def model():
    """Return the compiled network."""
    inputs = keras.layers.Input([PAST // STEP, 3])
    x = keras.layers.LSTM(32)(inputs)
    network = keras.Model(inputs, keras.layers.Dense(1)(x))
    network.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss="mse")
    return network
