"""Keras 3 costs nothing where no model is of it."""

import subprocess
import sys

from tests.support.processes import ROOT

TRAIN = """
import sys
from pathlib import Path
from trainer.cluster.messages import Channel
from trainer.worker import process
process.prepare()
from trainer.cli.compose import compose
from trainer.worker.building import build
options = ["model=softmax", "dataset=digits", "batch.global_size=16", "train.steps=2"]
run = build.engine(compose(options), Path(sys.argv[1]), Channel(lambda message: None))
assert run.train(lambda: False)
assert "tf_keras" in sys.modules
print([name for name in sys.modules if name.partition(".")[0] == "keras"])
"""


def test_worker_that_trains_a_model_of_tf_keras_does_not_import_keras_3(tmp_path):
    command = [sys.executable, "-c", TRAIN, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
