"""What a model function may return."""

import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.worker.building import returned_model


class OwnLoss(tf.keras.Sequential):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


def test_overridden_step_is_refused_unless_a_task_of_the_user_may_call_it():
    model = OwnLoss([tf.keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match=r"OwnLoss overrides compute_loss, which is not called"):
        returned_model.check(model, "model", "mine.net", is_own_task=False)
    returned_model.check(model, "model", "mine.net", is_own_task=True)
