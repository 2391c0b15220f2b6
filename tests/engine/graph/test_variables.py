"""The loss scale."""

import math

import pytest
import tensorflow as tf

from trainer.engine.graph.variables import LossScale


@pytest.mark.parametrize("before", [2.0**63, LossScale.LARGEST, 2.0**127])
def test_loss_scale_grows_up_to_a_limit(before):
    scale = LossScale()
    scale.value.assign(before)
    scale.good_steps.assign(LossScale.GROWTH_STEPS - 1)
    scale.update(tf.constant(True))
    assert float(scale.value) == LossScale.LARGEST
    assert math.isfinite(1.0 / float(scale.value))
    scale.update(tf.constant(False))
    assert float(scale.value) == LossScale.LARGEST / 2
