"""What the user's objects lack, and labels that no training can use, is one line each."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit, NestSplit
from trainer.errors import ConfigError
from trainer.tasks.classification import Classification
from trainer.worker import checks
from trainer.worker.checks import check_classes, warn_of_missing_numbers

ADVICE = "; add what trainer/protocols/ describes"
SPLIT = SimpleNamespace(num_examples=1, in_memory=True, fetch=lambda indices: {})
DATASET = {
    "train": SPLIT,
    "test": SPLIT,
    "input_shape": (8, 8, 1),
    "num_classes": 10,
    "num_draws": 0,
    "transform": lambda batch, draws: batch,
}


def without(values, name):
    return SimpleNamespace(**{key: value for key, value in values.items() if key != name})


def test_dataset_and_splits_without_a_member_are_refused():
    checks.check_dataset(SimpleNamespace(**DATASET))
    for name in DATASET:
        with pytest.raises(ConfigError) as raised:
            checks.check_dataset(without(DATASET, name))
        assert raised.value.problems == (f"dataset (SimpleNamespace) has no {name}{ADVICE}",)
    for split in ("train", "test"):
        dataset = SimpleNamespace(**{**DATASET, split: SimpleNamespace(num_examples=3)})
        with pytest.raises(ConfigError) as raised:
            checks.check_dataset(dataset)
        assert raised.value.problems == (
            f"dataset.{split} (SimpleNamespace) has no in_memory, fetch{ADVICE}",
        )


EVERY = r"must be an integer >= 1, .* one on_step to the next; add .* every = 100"
CALLBACKS = {
    " has none of on_train_begin, .*on_train_end, adjust_learning_rate; add one": {},
    " has on_epoch_begin, which is never called; did you mean 'on_epoch_end'": {
        "on_epoch_begin": print, "adjust_learning_rate": print,
    },
    rf": every \(None\) {EVERY}": {"on_step": lambda training: None},
    r": on_evaluate\(metrics\) is called with \(step, metrics\); let it take these alone": {
        "on_evaluate": lambda metrics: None
    },
}  # fmt: skip


@pytest.mark.parametrize("problem", CALLBACKS)
def test_callback_that_would_not_be_called_is_refused(problem):
    with pytest.raises(ConfigError, match=rf"^callbacks.mine \(SimpleNamespace\){problem}"):
        checks.check_callback("callbacks.mine", SimpleNamespace(**CALLBACKS[problem]))


SPARSE = "sparse_categorical_crossentropy"
GOOD = np.array([0, 2, 1, 0])


def task(loss=SPARSE, library=keras):
    model = library.Sequential([library.layers.Input((2,)), library.layers.Dense(3)])
    model.compile("sgd", loss)
    return SimpleNamespace(models={"model": model})


def dataset(labels, evaluated=GOOD, **more):
    def split(labels):
        return NestSplit({"features": np.zeros([4, 2]), "label": labels})

    return SimpleNamespace(train=split(labels), test=split(evaluated), num_classes=10, **more)


@pytest.mark.parametrize("library", [keras, tf.keras], ids=["keras3", "tf_keras"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 1, -1, 0]), r"train split have -1 \(example 2\), .* from 0 to 2; correct"),
        (np.array([[0], [1], [1], [3]]), r"train split have 3 \(example 3\)"),
        (np.array([0, 1, np.nan, 0]), r"train split have nan \(example 2\)"),
        (np.array(list("abca")), r"train split are texts \('a'\); number the classes"),
        (np.eye(4, 3, dtype=int), r"train split are one-hot \(4x3\), .*categorical_crossentropy"),
    ],
)
def test_labels_that_a_sparse_loss_cannot_take_are_refused(library, labels, message):
    with pytest.raises(ConfigError, match=message):
        check_classes(task(library=library), dataset(labels))
    with pytest.raises(ConfigError, match=message.replace("train", "test")):
        check_classes(task(library=library), dataset(GOOD, labels))


@pytest.mark.parametrize(
    ("trained", "loss"),
    [
        (task(keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)), None),
        (task("mse"), None),
        (task(), "mse"),
        (task(lambda y, p: p[:, 0]), None),
    ],
)
def test_other_losses_take_what_they_can(trained, loss):
    check_classes(trained, dataset(np.array([0, 1, -1, 0])), loss)


def test_model_that_computes_its_own_loss_may_change_its_labels():
    class Shifted(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, **options):
            return super().compute_loss(x, y - 1, y_pred, **options)

    model = Shifted([keras.layers.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", SPARSE)
    check_classes(SimpleNamespace(models={"model": model}), dataset(np.array([1, 2, 3, 3])))


def test_classification_needs_several_classes_and_labels_among_them():
    with pytest.raises(ConfigError, match=r"train split have 10 \(example 1\)"):
        check_classes(Classification(), dataset(np.array([0, 10, 1, 1])))
    one = dataset(np.zeros(4, np.int64), class_names=["cat"])
    one.num_classes = 1
    with pytest.raises(ConfigError, match=r"all examples are of one class \(cat\), so that there"):
        check_classes(Classification(), one)


def test_numbers_that_are_not_finite_are_reported(caplog):
    features = np.ones([4, 2], np.float32)
    features[[1, 3], 0] = np.nan, np.inf
    large = ArraySplit(np.full([4, 2], 3e38, np.float32), None)  # whose sum overflows
    warn_of_missing_numbers(SimpleNamespace(train=ArraySplit(features, GOOD), test=large))
    (line,) = caplog.messages
    assert "2 of 4 examples of the train split have NaN or infinity in features" in line
