"""A task whose models and optimizers are nodes: built and trained."""

import pytest

from tests.support.choices import GAN_CONF as CONF
from tests.support.training import SMALL
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.errors import ConfigError
from trainer.worker.training import TrainingRun

GAN = ["task=toy_gan", *(item for item in SMALL if not item.startswith("model"))]


def engine(run_dir, *overrides):
    run_dir.mkdir(exist_ok=True)
    experiment = compose([*GAN, *overrides], CONF)
    return TrainingRun(experiment, run_dir, Channel(lambda message: None)).engine


def test_nodes_make_models_and_optimizers_with_learning_rates_of_their_own(tmp_path):
    built = engine(
        tmp_path,
        "task.generator.width=5",
        "task.discriminator_optimizer.learning_rate=0.5",
        "+schedule@task.generator_schedule=step",
        "task.generator_schedule.boundaries=[3]",
        "schedule=cosine",
        "schedule.reference_batch=8",
    )
    models = built.state.task.models
    assert [layer.units for layer in models["generator"].layers[:1]] == [5]
    assert models["generator"].output_shape == (None, 8, 8, 1)
    assert models["discriminator"].output_shape == (None, 1)
    # The batch is twice the reference batch; the node's schedule has no reference.
    assert built.loop.learning_rates(0) == {
        "learning_rate/generator_optimizer": pytest.approx(0.001),
        "learning_rate/discriminator_optimizer": pytest.approx(1.0),
    }
    rates = built.loop.learning_rates(4)
    assert rates["learning_rate/generator_optimizer"] == pytest.approx(0.0001)
    assert rates["learning_rate/discriminator_optimizer"] == pytest.approx(0.5)
    # Two updates of the discriminator make a step.
    optimizer = built.state.task.optimizers["discriminator"]
    optimizer.iterations.assign(9)
    assert float(optimizer._decayed_lr("float32")) == pytest.approx(0.5)


def test_configured_model_that_the_task_does_not_use_is_refused(tmp_path):
    with pytest.raises(ConfigError) as raised:
        engine(tmp_path, "model=cnn")
    assert raised.value.problems == (
        "model (cnn) is not used by task=toy_gan, which has its own; leave model=<choice> out, "
        "or add ~model",
    )
