"""The GAN task: losses, updates, the same numbers however a batch is cut, and its evaluation."""

import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.training import recipe
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster, ProcessId
from trainer.engine.graph.randomness.randomness import normal_of
from trainer.protocols import ModelNode, OptimizerNode
from trainer.tasks.gan import Gan
from trainer.worker.run import SavedRun
from trainer.worker.training import TrainingRun

GAN = [
    "experiment=gan_digits",
    "task.generator.width=2",
    "task.generator.latent=4",
    "task.discriminator.width=2",
    "task.discriminator_steps=2",
    "batch.global_size=32",
    "train.steps=4",
    "train.ema_decay=0.9",
    "evaluate.every_steps=null",
    "writers=[jsonl]",
]


def gan_engine(run_dir, *overrides):
    return recipe(run_dir, *GAN, *overrides)


def toy(loss):
    """Return a task whose generator and discriminator are formulas."""
    nodes = {name: ModelNode(name, {}) for name in ("generator", "discriminator")}
    optimizers = {f"{name}_optimizer": OptimizerNode(name, {}) for name in nodes}
    task = Gan(**nodes, **optimizers, loss=loss)
    task.models = {
        "generator": lambda z, training: 2.0 * z,
        "discriminator": lambda x, training: tf.reduce_sum(x, axis=1, keepdims=True),
    }
    return task


@pytest.mark.parametrize("loss", ["hinge", "non_saturating"])
def test_losses_and_accuracy_follow_their_formulas(loss):
    task = toy(loss)
    real = np.array([[0.3, 0.4], [2.0, 1.0], [-0.5, 0.1]], np.float32)
    ids = tf.range(3, dtype=tf.int64)
    task.latent_size = 2
    of_real = real.sum(axis=1)
    of_fake = 2.0 * normal_of(ids, 2).numpy().sum(axis=1)
    losses, metrics = task.eval_step({"features": real, "id": ids})
    if loss == "hinge":
        wanted = np.maximum(0, 1 - of_real) + np.maximum(0, 1 + of_fake)
        wanted_generator = -of_fake
    else:
        wanted = np.log1p(np.exp(-of_real)) + np.log1p(np.exp(of_fake))
        wanted_generator = np.log1p(np.exp(-of_fake))
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    np.testing.assert_allclose(metrics["generator_loss"], wanted_generator, rtol=1e-6)
    right = ((of_real > 0).astype(float) + (of_fake < 0)) / 2
    np.testing.assert_array_equal(metrics["discriminator_accuracy"], right)


@pytest.mark.slow
def test_step_updates_discriminator_more_often_and_its_vectors_with_it(tmp_path):
    run = gan_engine(tmp_path)
    run.train(lambda: False)
    optimizers = run.state.task.optimizers
    updates = {name: int(optimizer.iterations) for name, optimizer in optimizers.items()}
    assert updates == {"generator": 4, "discriminator": 8}
    vectors = [
        variable.numpy()
        for variable in run.state.task.models["discriminator"].non_trainable_variables
    ]
    # One for each layer, of length 1 since the first iteration.
    assert len(vectors) == 4
    np.testing.assert_allclose([np.linalg.norm(vector) for vector in vectors], 1.0, rtol=1e-6)


SOFTMAX = ["model=softmax", "train.steps=20", "train.epochs=null", "writers=[jsonl]"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A trained run of a classifier, with its configuration as the parent writes it."""
    run_dir = tmp_path_factory.mktemp("classifier")
    run = TrainingRun(compose(SOFTMAX), run_dir, Channel(lambda message: None)).engine
    run.train(lambda: False)
    (run_dir / "config.yaml").write_text(
        json.dumps({"model": {"_target_": "trainer.models.softmax.softmax", "l2": 0.0}})
    )
    return run_dir


@pytest.mark.slow
def test_evaluation_shows_samples_and_scores_them_also_in_the_sidecar(tmp_path, classifier):
    quality = [
        "metrics=gan_quality",
        f"metrics.gan_quality.classifier={classifier}",
        "metrics.gan_quality.samples=100",
    ]
    run = gan_engine(tmp_path, *quality)
    run.train(lambda: False)
    evaluation = run.evaluator.evaluate(lambda: False)
    metrics = evaluation.metrics
    assert list(metrics) == [
        "loss", "generator_loss", "discriminator_accuracy", "frechet_distance", "inception_score",
    ]  # fmt: skip
    assert metrics["frechet_distance"] > 0
    assert 1.0 <= metrics["inception_score"] <= 10.0
    (grid,) = evaluation.images["samples"]
    assert grid.shape == (8 * 33 - 1, 8 * 33 - 1, 3)
    assert grid.std() > 0
    picture = tmp_path / "samples.png"
    np.testing.assert_array_equal(np.asarray(Image.open(picture)), grid)
    picture.unlink()
    experiment = compose([*GAN, *quality])
    alone = Cluster(ProcessId("evaluator", 0))
    beside = SavedRun(experiment, tmp_path, Channel(lambda message: None), alone)
    test = beside.evaluated("test")
    evaluator = beside.inference.evaluator(test, beside.inference.predictor(test))
    beside.checkpointer.restore(4)
    assert evaluator.evaluate(lambda: False).metrics == metrics, "from the same vectors"
    assert picture.exists()
