"""Trains a program with Keras' own `fit`, on the batches that Steadfast trains on."""

import itertools
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tests.differential.program import BATCH
from tests.differential.results import Results, weights_of
from tests.differential.source import WIDE_KINDS
from trainer.datasets.splits.batches import passes
from trainer.datasets.splits.nested import seeded

SEED = 0
"""Of Steadfast's order of the examples."""
CLASS_WEIGHTS = {0: 0.5, 1: 2.0, 2: 1.5}


def class_weights(program):
    """Return the weights of the classes of a program's labels."""
    count = 2 if program.outputs[0].target == "flag" else 3
    return {number: CLASS_WEIGHTS[number] for number in range(count)}


def count_anew():
    """Have both Kerases name layers and metrics as if they were the first of this process."""
    tf.keras.backend.clear_session()
    keras.utils.clear_session(free_memory=False)


def made(module):
    """Return the model of a program, with its variables."""
    count_anew()
    model = module.make_model()
    if not model.built or not model.weights:
        model(module.examples(BATCH, 0)[0])
    return model


def fit(program, module, shift=0.0, *, eagerly=True):
    """Train a program with `fit`.

    Args:
        shift: how far the weights are moved before, relative to their size: what rounding could do.
        eagerly: without a graph, which takes a tenth of the time; Nadam of tf_keras, which counts
            in Python, makes other updates then.
    """
    model = made(module)
    model.run_eagerly = eagerly
    _add_up_rows(model)
    parts = _batches(program, module)
    if shift:
        _move(model, shift)
    start = weights_of(model)
    options = {}
    if program.data.class_weights:
        options["class_weight"] = class_weights(program)
    if program.epochs == 1 and not program.data.lengths:
        options |= {"x": parts[0], "y": parts[1], "batch_size": BATCH, "shuffle": False}
        options |= {"sample_weight": parts[2]} if len(parts) > 2 else {}
    else:  # which continues where the epoch before has ended
        options["x"] = tf.data.Dataset.from_tensor_slices(_tuples(parts)).batch(BATCH)
        options["steps_per_epoch"] = program.steps
    held_out = {"x": module.examples(program.data.test, 1), "batch_size": BATCH}
    if program.data.lengths:
        options["x"] = _shortened(module, parts, program.data.train // BATCH)
        if not any(item.shape in WIDE_KINDS for item in program.outputs):
            held_out = {"x": _shortened(module, held_out["x"]), "batch_size": None}
    fitted = model.fit(
        epochs=program.epochs,
        verbose=0,
        validation_data=held_out["x"],
        validation_batch_size=held_out["batch_size"],
        **options,
    )
    history = {name: [np.mean(x) for x in values] for name, values in fitted.history.items()}
    return Results(history, weights_of(model), predict(program, module, model), start)


def predict(program, module, model):
    """Return what a model makes of the examples of the evaluation."""
    outputs = model(module.examples(program.data.test, 1)[0], training=False)
    return [np.asarray(output) for output in tf.nest.flatten(outputs)]


def _shortened(module, examples, count=1000):
    """Return batches of the lengths that they have in `count` batches which repeat."""
    batches = tf.data.Dataset.from_tensor_slices(_tuples(examples)).batch(BATCH)
    return batches.enumerate().map(lambda number, batch: module.shortened(number % count, batch))


def _tuples(value):
    """Return a nest without lists, of which TensorFlow would make one tensor each."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _batches(program, module):
    """Return the examples of all steps, one batch after the other."""
    from trainer.engine.graph.input.feed import SampleOrder

    positions = tf.range(program.steps * program.epochs * BATCH, dtype=tf.int64)
    if program.data.source == "arrays":
        _, rows = SampleOrder(program.data.train, SEED).locate(positions)
    elif program.data.source == "sequence":
        rows = _rows_of_batches(program.data.train, len(positions))
    else:
        rows = positions % program.data.train
    order = np.asarray(rows)
    return tf.nest.map_structure(lambda array: array[order], module.examples(program.data.train, 0))


class _Rows(tf.keras.utils.Sequence):
    """Batches of the numbers of the examples."""

    def __init__(self, count):
        self._rows = np.arange(count)

    def __len__(self):
        return -(-len(self._rows) // BATCH)

    def __getitem__(self, number):
        return self._rows[number * BATCH :][:BATCH]


def _rows_of_batches(count, total):
    """Return the first examples of a sequence of batches; their order is Steadfast's own."""
    with seeded():
        seed = int(np.random.randint(2**31))
    batches = itertools.islice(passes(lambda: _Rows(count), seed), total)
    return np.concatenate(list(batches))[:total]


def _add_up_rows(model):
    """Have the optimizers of a model get one gradient for each row of a table.

    Of a row that a batch looks up several times Keras 3 squares each gradient by itself, and
    tf_keras clips by the norm of all of them; both depend on how a batch is cut. Steadfast adds
    them up first; this is the one number that is not `fit`'s.
    """
    for optimizer in filter(None, (model.optimizer, getattr(model, "second", None))):
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer.apply = partial(_apply_dense, optimizer.apply)
        elif isinstance(optimizer, tf.keras.optimizers.Optimizer):
            optimizer.apply_gradients = partial(_apply_pairs, optimizer.apply_gradients)


def _apply_dense(apply, gradients, variables=None):
    apply([_dense(item) for item in gradients], variables)


def _apply_pairs(apply, pairs, *args, **options):
    return apply([(_dense(item), variable) for item, variable in pairs], *args, **options)


def _dense(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _move(model, shift):
    rng = np.random.default_rng(3)
    trained = [variable.shape for variable in model.trainable_variables]
    assert trained
    for variable in model.trainable_variables:
        value = np.asarray(variable)
        variable.assign(value + shift * (np.abs(value) + 0.1) * rng.choice([-1, 1], value.shape))
