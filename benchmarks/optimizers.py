"""What an update costs, and a step of a Keras 3 model: processor time, in one process.

    python -m benchmarks.optimizers [--rounds N]

The network of TensorFlow's tutorial, batch 64. Processor time counts all threads, so other load on
the machine disturbs it little. Rounds are interleaved, each case runs in one graph; medians.
"""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks.harness import interleave
from trainer.engine.graph.exchange.collective_log import CollectiveLog
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step

BATCH = 64
UPDATES = 10
"""In one call of a graph."""

RATE = 1e-3
OPTIMIZERS = {
    "sgd": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {"weight_decay": 0.01}),
    "nadam": ("Nadam", {}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
    "adafactor": ("Adafactor", {}),
    "lion": ("Lion", {}),
    "muon": ("Muon", {}),
    "lamb": ("Lamb", {}),
    "lars": (None, {}),
}
"""An optimizer -> the class of the same name in both Keras, and its options there."""


def tutorial_cnn() -> keras.Model:
    """Return the tutorial's network in Keras 3."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def own(name: str) -> Any:
    """Return an optimizer of this project."""
    return getattr(importlib.import_module(f"trainer.optimizers.{name}"), name)(RATE)


def looped(body: Callable[[], None]) -> Callable[[], float]:
    """Return what measures a body: processor milliseconds of one execution."""

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        def once(number: tf.Tensor) -> tuple[tf.Tensor]:
            body()
            return (number + 1,)

        return tf.while_loop(
            lambda number: number < UPDATES, once, (tf.constant(0),), parallel_iterations=1
        )[0]

    run()

    def measure() -> float:
        start = time.process_time()
        run().numpy()
        return (time.process_time() - start) * 1000 / UPDATES

    return measure


def updates(name: str) -> dict[str, Callable[[], float]]:
    """Return the contenders for an update of all variables of the network."""
    shapes = [variable.shape for variable in tutorial_cnn().trainable_variables]
    gradients = [tf.random.stateless_normal(shape, [0, 1]) for shape in shapes]
    kind, options = OPTIMIZERS[name]
    variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    contenders = {"own": _update(own(name), gradients, variables)}
    if kind is not None and hasattr(tf.keras.optimizers, kind):
        variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
        optimizer = getattr(tf.keras.optimizers, kind)(RATE, **options)
        contenders["tf_keras"] = _update(optimizer, gradients, variables)
    if kind is not None and hasattr(keras.optimizers, kind):
        variables = [keras.Variable(tf.ones(shape)) for shape in shapes]
        optimizer = getattr(keras.optimizers, kind)(RATE, **options)
        optimizer.build(variables)
        contenders["Keras 3"] = looped(lambda: optimizer.apply(gradients, variables))
    return contenders


def _update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> Callable[[], float]:
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)
    else:
        optimizer.build(variables)
    pairs = list(zip(gradients, variables, strict=True))
    return looped(lambda: optimizer.apply_gradients(pairs))


def steps() -> dict[str, Callable[[], float]]:
    """Return the contenders for a step of the Keras 3 network with Adam."""
    batch = {
        "features": tf.random.stateless_uniform([BATCH, 28, 28, 1], [0, 0]),
        "label": tf.range(BATCH, dtype=tf.int64) % 10,
        "weight": tf.ones([BATCH]),
    }
    return {
        "in the scope, fused": looped(_engine_step(batch)),
        "direct, fused": looped(_direct_step(batch, own("adam"))),
        "direct, its own": looped(_direct_step(batch, keras.optimizers.Adam(RATE))),
    }


def _losses(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)


def _engine_step(batch: dict[str, tf.Tensor]) -> Callable[[], None]:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = Keras3Model(tutorial_cnn())
        optimizer = own("adam")
        optimizer._create_all_weights(model.trainable_variables)
    log = CollectiveLog()

    def loss_fn(part: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return _losses(model(part["features"], training=True), part), {}

    def body() -> None:
        step = Step(tf.constant(0, tf.int64), StepOptions(), log)
        step.minimize(loss_fn, batch, model, optimizer)
        step.end()

    return lambda: strategy.run(body)


def _direct_step(batch: dict[str, tf.Tensor], optimizer: Any) -> Callable[[], None]:
    model = tutorial_cnn()
    variables = [variable.value for variable in model.trainable_variables]
    is_own = isinstance(optimizer, keras.optimizers.Optimizer)
    if is_own:
        optimizer.build(model.trainable_variables)
    else:
        optimizer._create_all_weights(variables)

    def body() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_losses(model(batch["features"], training=True), batch))
        gradients = tape.gradient(loss, variables)
        if is_own:
            optimizer.apply(gradients, model.trainable_variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return body


def _row(title: str, contenders: dict[str, Callable[[], float]], rounds: int) -> str:
    results = interleave(contenders, rounds)
    medians = {name: statistics.median(values) for name, values in results.items()}
    base = next(iter(medians.values()))
    cells = [f"{name} {value:.2f} ({value / base:.2f})" for name, value in medians.items()]
    return f"{title:10} " + "  ".join(cells)


def main() -> None:
    """Measure, and print processor milliseconds and ratios to the first of each line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.optimizers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    lines = [_row("step", steps(), rounds)]
    lines += [_row(name, updates(name), rounds) for name in OPTIMIZERS]
    print("processor milliseconds (ratio to the first)")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
