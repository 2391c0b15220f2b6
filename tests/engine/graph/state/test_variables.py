"""The loss scale."""

import pytest
import tensorflow as tf

from trainer.engine.graph.state.variables import LossScale


@pytest.mark.parametrize(
    ("before", "after"),
    [(2.0**63, 2.0**64), (LossScale.LARGEST, LossScale.LARGEST), (2.0**127, 2.0**127)],
)
def test_loss_scale_grows_up_to_a_limit(before, after):
    scale = LossScale()
    scale.value.assign(before)
    scale.good_steps.assign(LossScale.GROWTH_STEPS - 1)
    scale.update(tf.constant(True))
    assert float(scale.value) == after
    scale.update(tf.constant(False))
    assert float(scale.value) == after / 2
