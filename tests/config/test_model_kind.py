"""Which models may be of Keras 3, told without importing them."""

import pytest

from trainer.cli.compose import compose
from trainer.config.model_kind import may_be_keras3

OTHER = ("model=softmax", "~model.l2")


@pytest.mark.parametrize("model", ["softmax", "cnn", "mobilenet"])
def test_shipped_models_of_tf_keras_are_known(model):
    assert not may_be_keras3(compose([f"model={model}"]))


def test_models_of_tensorflow_are_known_and_those_from_elsewhere_are_not():
    target = "model._target_=tensorflow.keras.applications.MobileNetV2"
    assert not may_be_keras3(compose([*OTHER, target]))
    target = "model._target_=tests.support.keras3_models.conv_net"
    assert may_be_keras3(compose([*OTHER, target]))


def test_models_of_a_task_count():
    gan = "experiment=gan_digits"
    assert not may_be_keras3(compose([gan]))
    own = "task.discriminator._target_=tests.support.keras3_models.conv_net"
    assert may_be_keras3(compose([gan, own, "~task.discriminator.width"]))
