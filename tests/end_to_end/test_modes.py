"""The modes of a finished run."""

import json
import subprocess
import sys

import pytest

from tests.support.processes import TIMEOUT_SECS, only_run, run


@pytest.mark.slow
def test_evaluate_and_export_use_the_averaged_weights(tmp_path):
    short = ["train.steps=3", "model=softmax", "train.ema_decay=0.9"]
    assert run(tmp_path, *short)[0] == 0
    run_dir = only_run(tmp_path)
    result = json.loads((run_dir / "result.json").read_text())
    code, _, err = run(tmp_path, "mode=evaluate", f"resume={run_dir}")
    assert code == 0, err
    assert json.loads((run_dir / "evaluation-3.json").read_text())["metrics"] == result["metrics"]
    code, _out, err = run(tmp_path, "mode=export", f"resume={run_dir}")
    assert code == 0, err
    # A fresh process with plain TensorFlow predicts with the averaged weights: what was evaluated.
    program = """
import sys, numpy as np, tensorflow as tf
served, reader = tf.saved_model.load(sys.argv[1]), tf.train.load_checkpoint(sys.argv[2])
averages = [reader.get_tensor(f"averages/model/{i}/.ATTRIBUTES/VARIABLE_VALUE") for i in range(2)]
images = np.random.default_rng(0).uniform(size=(5, 8, 8, 1)).astype(np.float32)
logits = images.reshape(5, 64) @ averages[0] + averages[1]
probabilities = served.signatures["serving_default"](features=images)["probabilities"]
print(np.abs(probabilities - tf.nn.softmax(logits)).max() < 1e-6)
"""
    paths = [run_dir / "export" / "model-3" / "saved_model", run_dir / "checkpoints" / "ckpt-3"]
    command = [sys.executable, "-c", program, *map(str, paths)]
    assert subprocess.check_output(command, text=True, timeout=TIMEOUT_SECS).strip() == "True"
