"""What a model function may return, and that Keras 3 costs nothing where no model is of it."""

import sys

import pytest
import tensorflow as tf

from tests.support.processes import ROOT, run_program
from trainer.errors import ConfigError
from trainer.worker import task_parts


class OwnLoss(tf.keras.Sequential):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


def test_overridden_step_is_refused_unless_a_task_of_the_user_may_call_it():
    model = OwnLoss([tf.keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match=r"OwnLoss overrides compute_loss, which is not called"):
        task_parts.check_model(model, "model", "mine.net", runs_steps=False)
    task_parts.check_model(model, "model", "mine.net", runs_steps=True)


TRAIN = """
import sys
from pathlib import Path
from trainer.cluster.messages import Channel
from trainer.worker import process
process.prepare()
from trainer.cli.compose import compose
from trainer.worker.training import TrainingRun
options = ["model=softmax", "dataset=digits", "batch.global_size=16", "train.steps=2"]
run = TrainingRun(compose(options), Path(sys.argv[1]), Channel(lambda message: None)).engine
assert run.train(lambda: False)
assert "tf_keras" in sys.modules
print([name for name in sys.modules if name.partition(".")[0] == "keras"])
"""


@pytest.mark.slow
def test_worker_that_trains_a_model_of_tf_keras_does_not_import_keras_3(tmp_path):
    output = run_program(sys.executable, "-c", TRAIN, tmp_path, cwd=ROOT)
    assert output.splitlines()[-1] == "[]"
