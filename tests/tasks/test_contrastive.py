"""Contrastive learning: NT-Xent by formula, over the global batch on any number of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import keras3_models
from tests.support.outputs import exported_outputs, predicted_rows
from tests.support.training import ROUNDING, distance, variables
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.engine.evaluation.evaluator import columns
from trainer.errors import ConfigError
from trainer.tasks.contrastive import nt_xent
from trainer.worker.building import build

TINY = [
    "task=contrastive",
    "task.hidden=8",
    "task.projection=4",
    "dataset=colored_digits",
    "model=mlp",
    "model.hidden=[8]",
    "augment.flip=false",
    "optimizer=sgd",
    "batch.global_size=32",
    "train.steps=4",
    "train.epochs=null",
    "evaluate.every_epochs=null",
    "writers=[jsonl]",
]


def make(run_dir, *overrides):
    run_dir.mkdir(parents=True, exist_ok=True)
    return build.engine(compose([*TINY, *overrides]), run_dir, Channel(lambda message: None))


def trained(run_dir, *overrides, stop=lambda run: False):
    run = make(run_dir, *overrides)
    run.train(lambda: stop(run))
    return variables(run)


def on_devices(count, name="mirrored"):
    return [f"strategy={name}", f"strategy.virtual_devices={count}"]


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
    """The variables before and after training on one device."""
    folder = tmp_path_factory.mktemp("one")
    run = make(folder)
    initial = variables(run)
    run.train(lambda: False)
    return initial, variables(run)


def formula(first, second, weight, temperature):
    """NT-Xent (Chen et al. 2020), equation 1, in float64 and with loops."""
    views = np.concatenate([first, second]).astype(np.float64)
    weights = np.concatenate([weight, weight])
    count = len(first)
    losses = np.zeros(2 * count)
    hits = np.zeros(2 * count)
    for i in range(2 * count):
        j = (i + count) % (2 * count)
        similarities = views @ views[i] / temperature
        others = [k for k in range(2 * count) if k != i and weights[k]]
        losses[i] = np.log(np.exp(similarities[others]).sum()) - similarities[j]
        hits[i] = max(others, key=lambda k: similarities[k]) == j
    return (losses[:count] + losses[count:]) / 2, (hits[:count] + hits[count:]) / 2


def unit(random, count):
    vectors = random.normal(size=[count, 5])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_loss_of_parts_equals_numpy_of_the_whole():
    random = np.random.default_rng(0)
    first, noise = unit(random, 12), unit(random, 12)
    second = first + 0.5 * noise
    second = (second / np.linalg.norm(second, axis=1, keepdims=True)).astype(np.float32)
    weight = np.ones(12, np.float32)
    weight[7] = 0.0  # an image that could not be read
    losses, hits = formula(first, second, weight, 0.3)
    everyone = [tf.constant(first), tf.constant(second)]
    for start in (0, 4, 8):
        own = [view[start : start + 4] for view in everyone]
        got, accuracy = nt_xent(own, everyone, tf.constant(weight), start, 0.3)
        part = [row for row in range(start, start + 4) if weight[row]]
        rows = [row - start for row in part]
        np.testing.assert_allclose(tf.gather(got, rows), losses[part], rtol=1e-5)
        np.testing.assert_array_equal(tf.gather(accuracy, rows), hits[part])
    assert 0 < hits.mean() < 1


@pytest.mark.slow
def test_replicas_compare_the_global_batch(on_one, tmp_path):
    initial, one = on_one
    assert distance(one, trained(tmp_path / "two", *on_devices(2)), initial) <= ROUNDING
    # What is compared within a replica's own part of the batch alone is something else.
    half = trained(tmp_path / "half", "batch.global_size=16")
    assert distance(one, half, initial) > 100 * ROUNDING


KERAS_3 = [
    *(item for item in TINY if not item.startswith("model")),
    "model=softmax", "~model.l2", f"model._target_={keras3_models.__name__}.lora",
]  # fmt: skip


@pytest.mark.slow
def test_encoder_of_keras_3_is_trained_alike_on_two_replicas(tmp_path):
    states = []
    for number, devices in enumerate(([], on_devices(2))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = build.engine(compose([*KERAS_3, *devices]), folder, Channel(lambda message: None))
        initial = variables(run)
        run.train(lambda: False)
        states.append(variables(run))
    one, two = states
    moved = {
        one[name].shape: bool((one[name] != initial[name]).any())
        for name in one
        if name.startswith("/models/")
    }
    # A frozen kernel, its adapters and bias, and the head; not the last layer, of 10 outputs.
    assert moved == {(192, 16): False, (192, 2): True, (2, 16): True, (16,): True, (16, 8): True,
                     (8,): True, (8, 4): True, (4,): True}  # fmt: skip
    assert distance(one, two, initial) <= ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("devices", [on_devices(4), on_devices(2, "central_storage")])
def test_every_strategy_makes_the_same_updates(devices, on_one, tmp_path):
    initial, one = on_one
    assert distance(one, trained(tmp_path, *devices), initial) <= ROUNDING


@pytest.mark.slow
def test_evaluation_compares_groups_of_the_global_batch_and_neighbors(tmp_path):
    run = make(tmp_path / "one", "evaluate.every_steps=null")
    run.train(lambda: False)
    metrics = run.evaluator.evaluate(lambda: False).metrics
    assert list(metrics) == ["loss", "accuracy", "knn_accuracy"]
    projections = columns(run.evaluator.test.predict())["projections"]
    assert projections.shape == (360, 2, 4)
    groups = [projections[start : start + 32] for start in range(0, 360, 32)]
    losses = [formula(group[:, 0], group[:, 1], np.ones(len(group)), 0.2)[0] for group in groups]
    assert metrics["loss"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-5)
    assert 0.1 < metrics["knn_accuracy"] < 1.0
    two = make(tmp_path / "two", *on_devices(2))
    two.train(lambda: False)
    on_two = two.evaluator.evaluate(lambda: False).metrics
    assert on_two["loss"] == pytest.approx(metrics["loss"], rel=1e-4)


REFUSED = {
    "one view": (
        ["augment=none"],
        "task=contrastive needs two random versions of each image; choose augment=simclr",
    ),
    "metrics": (["metrics=confusion"], r"metrics \(confusion\) needs predicted classes"),
    "misclassified": (
        ["summary.misclassified=2"],
        r"summary.misclassified \(2\) needs a classifier, and Contrastive predicts features",
    ),
    "best": (
        ["checkpoint.best.metric=acuracy", "checkpoint.best.mode=max"],
        r"checkpoint.best.metric \(acuracy\) must be a metric of the evaluation, which has loss, "
        r"accuracy, knn_accuracy; did you mean 'accuracy'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_right_is_refused_in_one_line(tmp_path, overrides, problem):
    tiny = [item for item in TINY if "augment=none" not in overrides or "augment." not in item]
    experiment = compose([*tiny, *overrides])
    with pytest.raises(ConfigError, match=problem) as caught:
        build.engine(experiment, tmp_path, Channel(lambda message: None)).train(lambda: False)
    assert len(caught.value.problems) == 1


def test_model_without_vector_before_its_last_layer_is_refused(tmp_path):
    tiny = [item for item in TINY if not item.startswith("model")]
    experiment = compose([*tiny, "model=unet", "model.width=2", "model.depth=1"])
    with pytest.raises(ConfigError, match="whose last layer takes a vector") as caught:
        build.engine(experiment, tmp_path, Channel(lambda message: None))
    assert len(caught.value.problems) == 1


@pytest.mark.slow
def test_table_and_export_have_the_features_of_the_encoder(tmp_path):
    make(tmp_path).train(lambda: False)
    rows = predicted_rows(tmp_path, TINY)
    columns = [f"features_{number}" for number in range(8)]
    assert list(rows[0]) == ["id", "label", *columns]
    values = np.array([[row[name] for name in columns] for row in rows], np.float32)
    outputs, _ = exported_outputs(tmp_path, TINY, 32)
    assert list(outputs) == ["features"]
    np.testing.assert_array_equal(outputs["features"], values)
