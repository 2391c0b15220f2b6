"""Classification, several labels and regression: losses and predictions against NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import engine, short_engine
from trainer.datasets.digits import digits
from trainer.errors import ConfigError
from trainer.tasks.classification import Classification
from trainer.tasks.language_model import LanguageModel
from trainer.tasks.multilabel import Multilabel
from trainer.tasks.regression import Regression
from trainer.tasks.segmentation import Segmentation

LOGITS = np.array([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5]], np.float32)
SHARES = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], np.float32)


def built(task, outputs=LOGITS, **parts):
    """Return a task whose model returns its features, which are like `outputs`."""
    sizes = {"num_classes": outputs.shape[-1], "num_outputs": outputs.shape[-1]}
    made = {"model": lambda: lambda x, training: x, "optimizer": lambda: None}
    task.build(SimpleNamespace(input_shape=outputs.shape[1:-1], **{**sizes, **made, **parts}))
    return task


def losses(task, label, outputs=LOGITS, *, training=True):
    """Return the loss of each example, and the metrics, in training or evaluation."""
    batch = {"features": tf.convert_to_tensor(outputs), "label": tf.constant(label)}
    if not training:
        return task.eval_step(batch)
    step = SimpleNamespace(minimize=lambda loss_fn, batch, model, optimizer: loss_fn(batch))
    return task.train_step(batch, step)


def softmax(logits):
    exponentials = np.exp(logits.astype(np.float64))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


WEIGHTS = np.array([1.0, 0.5, 4.0])
COUNTS = np.array([10, 20, 70])
CLASSIFIED = {
    "plain": ({}, lambda q, p: 1.0),
    "weights": ({"class_weights": WEIGHTS.tolist()}, lambda q, p: q @ WEIGHTS),
    "balanced": (
        {"class_weights": "balanced"},
        lambda q, p: q @ (100 / (3 * COUNTS)),
    ),
    "focal": ({"focal_gamma": 2.0}, lambda q, p: (1 - (q * p).sum(axis=-1)) ** 2),
    "root": ({"focal_gamma": 0.5}, lambda q, p: (1 - (q * p).sum(axis=-1)) ** 0.5),
}
"""Options of a classification -> the factor of an example's loss, of shares and probabilities."""


@pytest.mark.parametrize("label", [[0, 2, 1], SHARES], ids=["class", "shares"])
@pytest.mark.parametrize(("options", "factor"), CLASSIFIED.values(), ids=CLASSIFIED)
def test_loss_of_a_classification_is_changed_in_training_alone(options, factor, label):
    task = built(Classification(**options), class_counts=COUNTS)
    shares = np.eye(3)[label] if isinstance(label, list) else label
    p = softmax(LOGITS)
    entropy = -(shares * np.log(p)).sum(axis=-1)
    found, metrics = losses(task, label)
    np.testing.assert_allclose(found, factor(shares, p) * entropy, rtol=1e-5)
    evaluated, _ = losses(task, label, training=False)
    np.testing.assert_allclose(evaluated, entropy, rtol=1e-5)
    right = p.argmax(axis=-1) == shares.argmax(axis=-1)
    np.testing.assert_array_equal(metrics["accuracy"], right.astype(np.float32))


def test_smoothed_target_is_spread_over_all_classes():
    found, _ = losses(built(Classification(label_smoothing=0.1)), [0, 2, 1])
    target = np.eye(3)[[0, 2, 1]] * 0.9 + 0.1 / 3
    np.testing.assert_allclose(found, -(target * np.log(softmax(LOGITS))).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_gradient_of_a_certain_example_is_finite(gamma):
    logits = tf.Variable([[200.0, 0.0, 0.0]])
    with tf.GradientTape() as tape:
        loss, _ = losses(built(Classification(focal_gamma=gamma)), [0], logits)
    assert np.isfinite(tape.gradient(loss, logits).numpy()).all()


def test_outputs_that_are_no_class_have_no_share_and_are_not_predicted():
    task = built(Classification(), num_classes=2)
    found, _ = losses(task, SHARES[:, :2])
    padded = SHARES * [1, 1, 0]
    np.testing.assert_allclose(found, -(padded * np.log(softmax(LOGITS))).sum(-1), rtol=1e-5)
    predicted = task.predict_step({"features": tf.constant(LOGITS)})["probabilities"]
    np.testing.assert_allclose(predicted, softmax(LOGITS)[:, :2], rtol=1e-6)


def test_balanced_weights_come_from_the_training_split_and_need_each_class(tmp_path):
    task = engine(tmp_path, "task.class_weights=balanced").state.task
    counts = np.bincount(digits().train.labels)
    logits, labels = np.zeros([10, 10], np.float32), np.arange(10)
    task.models = {"model": lambda x, training: x}
    found, _ = losses(task, labels, logits)
    np.testing.assert_allclose(found, np.log(10) * counts.sum() / (10 * counts), rtol=1e-6)
    with pytest.raises(ConfigError, match=r"class_weights \(balanced\): class 1 has no example"):
        built(Classification(class_weights="balanced"), class_counts=[10, 0, 70])


FLAGS = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 0]])


def test_loss_and_predictions_of_several_labels_equal_numpy():
    p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    entropy = -(FLAGS * np.log(p) + (1 - FLAGS) * np.log(1 - p))
    task = built(Multilabel(positive_weights=[1.0, 2.0, 5.0], threshold=0.4))
    weighted, metrics = losses(task, FLAGS)
    expected = np.where(FLAGS, [1.0, 2.0, 5.0], 1.0) * entropy
    np.testing.assert_allclose(weighted, expected.mean(axis=1), rtol=1e-5)
    evaluated, _ = losses(task, FLAGS, training=False)
    np.testing.assert_allclose(evaluated, entropy.mean(axis=1), rtol=1e-5)
    predictions = task.predict_step({"features": tf.constant(LOGITS)})
    np.testing.assert_allclose(predictions["probabilities"], p, rtol=1e-6)
    np.testing.assert_array_equal(predictions["predicted"], p >= 0.4)
    np.testing.assert_array_equal(metrics["accuracy"], ((p >= 0.4) == FLAGS).all(axis=1))
    with pytest.raises(ConfigError, match=r"^task\.positive_weights \(\[1\.0\]\)"):
        built(Multilabel(positive_weights=[1.0]))


TARGETS = np.array([[105.0, -0.1], [120.0, 0.3], [95.0, 0.2]], np.float32)
SCALE = [(100.0, 10.0), (0.1, 0.2)]
NUMERIC = {
    "squared": lambda e: e**2,
    "absolute": np.abs,
    "huber": lambda e: np.where(np.abs(e) <= 0.8, e**2 / 2, 0.8 * (np.abs(e) - 0.4)),
}


@pytest.mark.parametrize("scale", [SCALE, None], ids=["normalized", "plain"])
@pytest.mark.parametrize("loss", NUMERIC)
def test_loss_of_a_regression_is_of_normalized_targets_and_the_rest_in_their_unit(loss, scale):
    means, deviations = np.array(scale or [(0.0, 1.0)] * 2, np.float64).T
    outputs = LOGITS[:, :2]  # a model may have more than there are targets
    errors = outputs - (TARGETS - means) / deviations
    task = built(Regression(loss=loss, delta=0.8), num_classes=2, target_scale=scale)
    found, metrics = losses(task, TARGETS)
    # float32: the targets are about 100, of which a rounding is 4e-6.
    np.testing.assert_allclose(found, NUMERIC[loss](errors).mean(axis=1), rtol=1e-5, atol=1e-6)
    expected = (np.abs(errors) * deviations).mean(axis=1)
    np.testing.assert_allclose(metrics["mae"], expected, rtol=1e-5)
    predicted = task.predict_step({"features": tf.constant(LOGITS)})["prediction"]
    np.testing.assert_allclose(predicted, outputs * deviations + means, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("task", "outputs", "batch", "right"),
    [
        (Classification, [[1, 1], [2, 1]], {"label": [0, 0]}, [0.0, 1.0]),
        (Classification, [[1, 1], [2, 1]], {"label": [[1.0, 0.0], [1.0, 0.0]]}, [0.0, 1.0]),
        (Multilabel, [[-1, -1], [-1, -1]], {"label": np.zeros([2, 2], int)}, [0.0, 1.0]),
        (LanguageModel, [[[1, 1], [2, 1]]], {"label": np.zeros([1, 2], int)}, [0.5]),
        (Segmentation, [[[[1, 1], [2, 1]]]], {"mask": np.zeros([1, 1, 2], int)}, [[1.0], [2.0]]),
    ],
)  # fmt: skip
def test_what_a_diverged_model_predicts_is_wrong(bad, task, outputs, batch, right):
    features = np.array(outputs, np.float32)
    features.reshape(-1, 2)[0] *= bad  # the first prediction
    tensors = {name: tf.constant(value) for name, value in batch.items()}
    _, metrics = built(task(), features).eval_step({"features": tf.constant(features), **tensors})
    accuracy = metrics["accuracy"]
    found = [x.numpy().tolist() for x in accuracy] if task is Segmentation else accuracy.numpy()
    assert list(found) == right


def columns(run, *names):
    """Train a run; return columns of its predictions."""
    run.train(lambda: False)
    chunks = list(run.predictor.predict())
    return [np.concatenate([chunk[name] for chunk in chunks]) for name in names]


@pytest.mark.slow
def test_metrics_of_several_labels_are_those_of_the_predictions(tmp_path):
    x = np.random.default_rng(0).normal(size=(80, 2)).round(3)
    lines = [f"{a},{b},{int(a > 0)},{str(b > 0.3).lower()}" for a, b in x]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,warm,dry", *lines]))
    run = short_engine(
        tmp_path / "run", "task=multilabel", "dataset=table",
        f"dataset.path={tmp_path / 'rows.csv'}", "dataset.label=[warm,dry]",
        "dataset.label_kind=multilabel", "dataset.test_fraction=0.3", "model=mlp",
        "model.hidden=[8]", "batch.shards=2", "task.threshold=0.45", "optimizer.learning_rate=0.02",
        "train.steps=24",
    )  # fmt: skip
    label, predicted, probabilities = columns(run, "label", "predicted", "probabilities")
    found = run.evaluator.evaluate(lambda: False).metrics
    np.testing.assert_array_equal(predicted, probabilities >= np.float32(0.45))
    assert found["accuracy"] == pytest.approx((label == predicted).all(axis=1).mean(), rel=1e-6)
    both = (label & predicted).sum()
    assert found["f1_micro"] == pytest.approx(2 * both / (label.sum() + predicted.sum()))
    assert {"f1/warm", "f1/dry", "average_precision/warm", "f1_macro"} < set(found)
    assert found["average_precision"] > 0.9
