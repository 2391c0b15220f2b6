"""Cases of communication between replicas, for one process, or as a script for several.

`python -m tests.support.replicas <index> <host:port> <host:port>` prints the results of this
process as JSON.
"""

import json
import os
import sys

if __name__ == "__main__":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    task = {"type": "worker", "index": int(sys.argv[1])}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": sys.argv[2:]}, "task": task})

import numpy as np
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step

NESTS = [{"a": 1, "b": [40, 1]}, {"a": 3, "b": [2, 98]}, {"a": 2, "b": [7, 50]}]
"""The value of each replica; the first two are those of TensorFlow's RFC on collectives."""

X = np.array(
    [[1.0, 2.0], [3.0, 2.0], [0.5, 4.0]], np.float32
)  # a tie between the first two, for min and max
W = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]], np.float32)
"""Value and loss weights of each replica: its loss is sum(w * y ** 2), y from a collective."""

BATCH = (
    np.random.default_rng(0).normal(3.0, 2.0, [3, 4, 5]).astype(np.float32)
    * np.array([1.0, 5.0, 0.2], np.float32)[:, None, None]
)
UPSTREAM = np.random.default_rng(1).normal(size=[3, 4, 5]).astype(np.float32)
EPSILON, MOMENTUM = 1e-3, 0.9

PARTS = np.random.default_rng(2).normal(size=[3, 2, 6]).astype(np.float32)
PART_WEIGHTS = np.random.default_rng(3).normal(size=[2, 6]).astype(np.float32)
"""The value of each replica, to be cut into parts along the last axis, and the loss weights."""

COLLECTIVES = {
    "sum": lambda step, x: step.all_reduce(x),
    "min": lambda step, x: step.all_reduce(x, "min"),
    "max": lambda step, x: step.all_reduce(x, "max"),
    "gather": lambda step, x: step.all_gather(x),
    "gather last": lambda step, x: step.all_gather(x, axis=-1),
    "broadcast": lambda step, x: step.broadcast(x, source=1),
    "map_reduce": lambda step, x: step.map_reduce(
        lambda nest: tf.nest.map_structure(lambda leaf: leaf * leaf, nest), x
    ),
}


def make_layers():
    """Create the layers of all cases, in the strategy's scope."""
    layers = {
        "synchronized": tf.keras.layers.BatchNormalization(
            synchronized=True, epsilon=EPSILON, momentum=MOMENTUM
        ),
        "local": tf.keras.layers.BatchNormalization(epsilon=EPSILON, momentum=MOMENTUM),
    }
    for layer in layers.values():
        layer.build([None, 5])
    return layers


def gradient_of(collective):
    """Return a case: the gradient of the replicas' losses by this replica's value."""

    def case(step, replica, layers):
        x = tf.constant(X[replica])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = collective(step, x)
            loss = tf.reduce_sum(W[replica] * y**2)
        return tape.gradient(loss, x)

    return case


def batch_norm(normalize):
    """Return a case: a replica's normalized batch, and the gradient by the batch."""

    def case(step, replica, layers):
        x = tf.constant(BATCH[replica])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = normalize(step, x, layers)
            loss = tf.reduce_sum(y * UPSTREAM[replica])
        return [y, tape.gradient(loss, x)]

    return case


def scattered(op):
    """Return a case: a replica's part of the reduced value, and the gradient by its value.

    The loss of a replica is sum(w * part ** 2), with its part of the weights.
    """

    def case(step, replica, layers):
        x = tf.constant(PARTS[replica])
        weights = np.split(PART_WEIGHTS, step.num_replicas, axis=-1)[replica]
        with tf.GradientTape() as tape:
            tape.watch(x)
            part = step.reduce_scatter({"x": x}, op, axis=-1)["x"]
            loss = tf.reduce_sum(weights * part**2)
        return [part, tape.gradient(loss, x)]

    return case


def second_order(step, replica, layers):
    """Return the gradient of the gradient of sum(all_reduce(x) ** 3)."""
    x = tf.constant(X[replica])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(step.all_reduce(x) ** 3)
        gradient = inner.gradient(loss, x)
    return outer.gradient(gradient, x)


CASES = {
    **{
        name: lambda step, replica, layers, call=call: call(step, NESTS[replica])
        for name, call in COLLECTIVES.items()
    },
    **{
        f"gradient of {name}": gradient_of(call)
        for name, call in COLLECTIVES.items()
        if name != "gather last"
    },
    "gradient of gather last": gradient_of(
        lambda step, x: tf.transpose(step.all_gather(x, axis=-1))
    ),
    "mean": lambda step, replica, layers: step.all_reduce(X[replica], "mean"),
    "gradient of mean": gradient_of(lambda step, x: step.all_reduce(x, "mean")),
    **{f"scatter {op}": scattered(op) for op in ("sum", "mean", "min", "max")},
    "empty": lambda step, replica, layers: step.all_reduce([tf.zeros([0, 3]), []]),
    "synchronized": batch_norm(lambda step, x, layers: layers["synchronized"](x, training=True)),
    "local": batch_norm(lambda step, x, layers: layers["local"](x, training=True)),
    "second order": second_order,
}


def expected(name, replicas):
    """Return the expected result of each replica, by NumPy or on one device."""
    if name in COLLECTIVES:
        leaves = [
            np.stack(leaf)
            for leaf in zip(*(tf.nest.flatten(nest) for nest in NESTS[:replicas]), strict=True)
        ]
        whole = [
            tf.nest.pack_sequence_as(NESTS[0], [_formula(name, leaf) for leaf in leaves])
        ] * replicas
        return whole
    x, w = X[:replicas], W[:replicas]
    if name == "mean":
        return [x.mean(0)] * replicas
    if name == "empty":
        return [[np.zeros([0, 3]), []]] * replicas
    if name.startswith("scatter "):
        return _scattered(name.removeprefix("scatter "), PARTS[:replicas])
    if name == "second order":
        return [6 * replicas**2 * x.sum(0)] * replicas
    if name.startswith("gradient of "):
        return list(_gradient(name.removeprefix("gradient of "), x, 2 * w.sum(0)))
    batches, upstream = (
        list(values[:replicas]) if name == "local" else [values[:replicas].reshape(-1, 5)]
        for values in (BATCH, UPSTREAM)
    )
    parts = [_batch_norm(x, g) for x, g in zip(batches, upstream, strict=True)]
    y, gradient = (
        np.concatenate(part).reshape(replicas, 4, 5) for part in zip(*parts, strict=True)
    )
    return [[y[replica], gradient[replica]] for replica in range(replicas)]


def _scattered(op, x):
    y = getattr(np, op)(x, axis=0)
    share = {"sum": np.ones_like(x), "mean": np.ones_like(x) / len(x)}.get(op, x == y)
    parts = np.split(y, len(x), axis=-1)
    return [
        [part, gradient] for part, gradient in zip(parts, 2 * PART_WEIGHTS * y * share, strict=True)
    ]


def _formula(name, x):
    return {
        "sum": lambda: x.sum(0),
        "min": lambda: x.min(0),
        "max": lambda: x.max(0),
        "gather": lambda: x,
        "gather last": lambda: np.moveaxis(x, 0, -1),
        "broadcast": lambda: x[1],
        "map_reduce": lambda: (x * x).sum(0),
    }[name]()


def _gradient(name, x, weight):
    """Return the gradient of the sum over the replicas of sum(w * y ** 2).

    `weight` is 2 * (sum of all w). Ties share the gradient.
    """
    ones = np.ones_like(x)
    if name in ("min", "max"):
        y = x.min(0) if name == "min" else x.max(0)
        return weight * y * (x == y) / (x == y).sum(0)
    return {
        "sum": lambda: weight * x.sum(0) * ones,
        "mean": lambda: weight * x.mean(0) / len(x) * ones,
        "gather": lambda: weight * x,
        "gather last": lambda: weight * x,
        "broadcast": lambda: weight * x[1] * (np.arange(len(x)) == 1)[:, None],
        "map_reduce": lambda: weight * (x * x).sum(0) * 2 * x,
    }[name]()


def _batch_norm(x, upstream):
    """Return batch normalization and its gradient (Ioffe and Szegedy 2015), in float64."""
    x = x.astype(np.float64)
    deviation = np.sqrt(x.var(0) + EPSILON)
    y = (x - x.mean(0)) / deviation
    return y, (upstream - upstream.mean(0) - y * (upstream * y).mean(0)) / deviation


def run(strategy, case, layers=None, log=None):
    """Run a case as one step; return the results of this process's replicas."""
    log = log or CollectiveLog()

    def on_replica():
        step = Step(tf.constant(0, tf.int64), StepOptions(), log)
        result = case(
            step,
            int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)),
            layers or {},
        )
        step.end()
        return result

    results = tf.function(lambda: strategy.run(on_replica), autograph=False)()
    return [
        tf.nest.pack_sequence_as(results, list(leaves))
        for leaves in zip(
            *(strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(results)),
            strict=True,
        )
    ]


def statistics(layer):
    """Return the moving statistics; all processes must call this."""
    return [layer.moving_mean.read_value().numpy(), layer.moving_variance.read_value().numpy()]


def main():
    """Run all cases in one of several processes."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = make_layers()
    logs = {name: CollectiveLog() for name in CASES}
    results = {name: run(strategy, case, layers, logs[name])[0] for name, case in CASES.items()}
    plain = {
        name: [np.asarray(leaf).tolist() for leaf in tf.nest.flatten(nest)]
        for name, nest in results.items()
    }
    moving = [value.tolist() for value in statistics(layers["synchronized"])]
    lines = {name: log.labels() for name, log in logs.items()}
    print(json.dumps({"results": plain, "moving": moving, "logs": lines}), flush=True)
    os._exit(0)  # TensorFlow's threads can make an orderly shutdown hang


if __name__ == "__main__":
    main()
