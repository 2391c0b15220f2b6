"""What every dataset must do, as checks that the tests of each dataset call.

The contract is `trainer.protocols.Split` and `Dataset`: examples by index, in any order and batch
size, the same bits whenever and wherever they are fetched.
"""

import numpy as np
import tensorflow as tf

MOST = 24
"""How many examples of a split are fetched; its first and last ones."""


def check_dataset(dataset):
    """Check both splits of a dataset, and what its `transform` makes of their batches."""
    assert dataset.num_classes >= 1
    assert all(isinstance(side, int) and side >= 1 for side in dataset.input_shape)
    check_split(dataset.test)
    check_transform(dataset, dataset.test, None)
    if not hasattr(dataset.train, "stream"):
        augments = bool(getattr(dataset.train, "augments", False))
        draws = tf.random.stateless_uniform([MOST, dataset.num_draws], [1, 2])
        check_split(dataset.train, draws if augments else None)
        check_transform(dataset, dataset.train, draws)


def check_split(split, draws=None):
    """Check that a split has examples by index.

    `draws` are the random numbers of its examples, [>= MOST, num_draws], if it takes them.
    """
    assert isinstance(split.num_examples, int)
    assert split.num_examples >= 1
    assert isinstance(split.in_memory, bool)
    head = min(split.num_examples, MOST // 2)
    indices = np.unique(np.r_[:head, split.num_examples - head : split.num_examples])

    # One function for all, which is traced once for each batch size.
    traced = tf.function(split.fetch)

    def fetch(rows):
        extra = [] if draws is None else [draws.numpy()[rows]]
        return _arrays(traced, indices[rows], *extra)

    everything = np.arange(len(indices))
    whole = fetch(everything)
    _check_names(whole, len(indices))
    _assert_same(fetch(everything), whole, "a second time")
    _assert_same(fetch(everything[::-1]), _take(whole, everything[::-1]), "in reverse")
    for row in everything[:3]:
        _assert_same(fetch(everything[row : row + 1]), _take(whole, [row]), "alone")
    twice = np.array([0, len(indices) - 1, 0])
    _assert_same(fetch(twice), _take(whole, twice), "twice in a batch")
    _check_pipeline(split, indices, draws, whole)


def check_transform(dataset, split, draws):
    """Check that a fetched batch becomes model input with static shapes, in a graph.

    `draws` are the random numbers of its examples, [>= MOST, num_draws], or None in an evaluation.
    """
    size = min(split.num_examples, 3)
    extra = [draws[:size]] if draws is not None and getattr(split, "augments", False) else []

    @tf.function
    def batch():
        fetched = split.fetch(tf.range(size, dtype=tf.int64), *extra)
        return dataset.transform(fetched, None if draws is None else draws[:size])

    structure = batch.get_concrete_function().structured_outputs
    assert structure["features"].shape == (size, *dataset.input_shape)
    first, second = (tf.nest.map_structure(np.asarray, batch()) for _ in range(2))
    _assert_same(second, first, "transformed again")
    if "label" in first and first["label"].ndim == 1 and first["label"].dtype == np.int64:
        assert first["label"].min() >= 0
        assert first["label"].max() < dataset.num_classes


def arrays(split, indices, draws=None):
    """Return examples as arrays, fetched in a graph at a static batch size."""
    return _arrays(tf.function(split.fetch), indices, *([] if draws is None else [draws]))


def _arrays(fetch, indices, *draws):
    extra = [tf.constant(part) for part in draws]
    rows = tf.constant(np.asarray(indices), tf.int64)
    shapes = fetch.get_concrete_function(rows, *extra).structured_outputs
    for name, tensor in shapes.items():
        assert tensor.shape.is_fully_defined(), f"{name} has the shape {tensor.shape}"
        assert tensor.shape[0] == len(rows), f"{name} has the shape {tensor.shape}"
    return {name: tensor.numpy() for name, tensor in fetch(rows, *extra).items()}


def _check_names(batch, size):
    assert "features" in batch
    assert "id" not in batch, "the engine adds `id`"
    assert all(len(values) == size for values in batch.values())
    if "weight" in batch:
        assert batch["weight"].dtype == np.float32
        assert set(batch["weight"].tolist()) <= {0.0, 1.0}
    if "label" in batch:
        assert batch["label"].dtype in (np.int64, np.float32)  # classes or flags, or numbers


def _check_pipeline(split, indices, draws, whole):
    """Check `fetch` where the engine calls it: in a parallel, prefetching pipeline."""
    parts = (indices,) if draws is None else (indices, draws[: len(indices)])
    data = tf.data.Dataset.from_tensor_slices(parts).repeat(2)
    batches = data.batch(3, drop_remainder=True).map(
        lambda *rows: split.fetch(*rows), num_parallel_calls=2, deterministic=True
    )
    assert all(spec.shape.is_fully_defined() for spec in batches.element_spec.values())
    fetched = [tf.nest.map_structure(np.asarray, batch) for batch in batches.prefetch(2)]
    rows = np.tile(np.arange(len(indices)), 2)
    for number, batch in enumerate(fetched):
        here = rows[3 * number : 3 * number + 3]
        _assert_same(batch, _take(whole, here), "in a pipeline")


def _take(batch, rows):
    return {name: values[rows] for name, values in batch.items()}


def _assert_same(batch, expected, when):
    assert batch.keys() == expected.keys(), f"{when}: {sorted(batch)}"
    for name, values in expected.items():
        found = np.asarray(batch[name])
        assert found.dtype == values.dtype, f"{when}: {name} is {found.dtype}"
        same = found.shape == values.shape and found.tobytes() == values.tobytes()
        same = same or (values.dtype == object and (found == values).all())
        assert same, f"{when}: {name} has other bits"
