"""Models of Keras 3 in real processes: killed, continued, handed out, exported."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import ROOT, only_run, run
from tests.support.training import LOW_PRECISION_ROUNDING
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.launch.run_comparison import differences, read
from trainer.worker import build

KERAS_3 = (
    "model=softmax", "~model.l2", "model._target_=tests.support.keras3_models.conv_net",
    "train.steps=8", "batch.global_size=16", "writers=[jsonl]", "checkpoint.every_steps=3",
    "restart.backoff_secs=0",
)  # fmt: skip
KILL = "+fault.kill={action:kill,process:worker-1,phase:step,at:5}"


@pytest.mark.slow
def test_cluster_that_lost_a_worker_ends_with_the_bits_of_an_undisturbed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    outcomes = []
    for fault in ([], [KILL]):
        directory = tmp_path / f"run-{len(outcomes)}"
        directory.mkdir()
        code, out, err = run(directory, *KERAS_3, "strategy=multi_worker", *fault)
        assert code == 0, f"{out}\n{err}"
        outcomes.append(read(only_run(directory)))
    straight, killed = outcomes
    assert differences(straight, killed) == []
    assert [name for _, name in killed.kills] == ["kill (worker-1 at step 5)"]


@pytest.mark.slow
def test_one_worker_of_parameter_servers_has_the_statistics_of_one_device(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    statistics = []
    for strategy in (["strategy=one_device"], ["strategy=parameter_server", "strategy.workers=1"]):
        directory = tmp_path / f"run-{len(statistics)}"
        directory.mkdir()
        code, out, err = run(directory, *KERAS_3, *strategy)
        assert code == 0, f"{out}\n{err}"
        path = only_run(directory) / "checkpoints" / "ckpt-8"
        reader = tf.train.load_checkpoint(str(path))
        names = [name for name in reader.get_variable_to_shape_map() if "moving_" in name]
        statistics.append({name: reader.get_tensor(name) for name in names})
    one, served = statistics
    assert len(one) == 2
    for name, value in one.items():
        # Added as differences, which rounds otherwise; the other sums are in the same order.
        np.testing.assert_allclose(served[name], value, rtol=0, atol=1e-4)
        assert np.abs(value - ("variance" in name)).max() > 0.01


def saved_weights(run_dir):
    reader = tf.train.load_checkpoint(str(run_dir / "checkpoints" / "ckpt-8"))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("models/")]
    return np.concatenate([reader.get_tensor(name).ravel() for name in sorted(names)])


SERVED = {
    "conv_net": ("+model.dropout=0", "precision=mixed_float16"),
    "lora": (
        "precision=mixed_bfloat16",
        "strategy.partitioner=min_size",
        "strategy.shard_bytes=64",
        "strategy.ps=2",
    ),
}
"""A model without random draws -> options that parameter servers take with Keras 3 alone."""


@pytest.mark.slow
@pytest.mark.parametrize("model", SERVED)
def test_parameter_servers_train_in_16_bits_what_xla_compiles(tmp_path, monkeypatch, model):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    chosen = (
        *(option for option in KERAS_3 if "_target_" not in option),
        f"model._target_=tests.support.keras3_models.{model}",
        *(option for option in SERVED[model] if "model." in option),
        "optimizer=sgd", "optimizer.learning_rate=0.05",
    )  # fmt: skip
    weights = {}
    for steps in (0, 8):  # one that was not trained yet
        run_dir = tmp_path / f"one-{steps}"
        run_dir.mkdir()
        training = build.engine(compose([*chosen]), run_dir, Channel(lambda message: None))
        if steps:
            training.train(lambda: False)
        weights[steps] = np.concatenate(
            [value.numpy().ravel() for value in training.state.task.models["model"].saved.values()]
        )
    served = ("strategy=parameter_server", "strategy.workers=1", "jit=true", *SERVED[model])
    code, out, err = run(tmp_path, *dict.fromkeys((*chosen, *served)))
    assert code == 0, f"{out}\n{err}"
    other = saved_weights(only_run(tmp_path))
    moved = np.linalg.norm(weights[8] - weights[0])
    assert np.linalg.norm(other - weights[8]) <= LOW_PRECISION_ROUNDING * moved


@pytest.mark.slow
def test_parameter_servers_train_and_every_mode_reads_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code, out, err = run(tmp_path, *KERAS_3, "strategy=parameter_server")
    assert code == 0, f"{out}\n{err}"
    directory = only_run(tmp_path)
    for mode in ("evaluate", "predict", "export"):
        code, out, err = run(tmp_path, f"mode={mode}", f"resume={directory}")
        assert code == 0, f"{mode}: {out}\n{err}"
    assert (directory / "export" / "model-8" / "saved_model" / "saved_model.pb").is_file()
