"""Low-rank adapters of Keras 3 layers, with frozen layers and initial weights of a run."""

import numpy as np
import pytest

from tests.engine.graph.keras3.test_keras3_model import TWO, engine, options, train
from tests.support.outputs import exported_outputs, predicted_rows
from trainer.engine.graph.state.weight_paths import weights_of
from trainer.engine.initial_weights import restore_weights
from trainer.errors import ConfigError

LORA = ("train.lora.rank=2", "train.lora.layers=[body]")


def weights(run):
    """Return the values by path, and which of them are trained."""
    model = next(iter(run.state.task.models.values()))
    ids = {id(variable) for variable in model.trainable_variables}
    paths = {weight.path: weight.container for weight in weights_of({"model": model})}
    trained = [path for path, variable in paths.items() if id(variable) in ids]
    return {path: variable.numpy() for path, variable in paths.items()}, trained


@pytest.mark.slow
def test_adapters_and_head_are_trained_and_the_rest_keeps_the_bits_of_a_run(tmp_path):
    train(tmp_path / "run", "named", "train.steps=2")
    tuned = engine(tmp_path / "tuned", "named", *LORA, "train.freeze=['^(?!head)']")
    text, _ = restore_weights(tmp_path / "run", tuned.state.task.models, ["lora"])
    assert text == (
        f"8 of 10 weights from step 2 of {tmp_path / 'run'}; "
        "fresh: body/lora_kernel_a, body/lora_kernel_b"
    )
    before, trained = weights(tuned)
    assert trained == ["body/lora_kernel_a", "body/lora_kernel_b", "head/kernel", "head/bias"]
    tuned.train(lambda: False)
    after, _ = weights(tuned)
    changed = [path for path in before if not np.array_equal(before[path], after[path])]
    assert changed == trained


@pytest.mark.slow
def test_export_of_adapters_predicts_what_the_run_predicts(tmp_path):
    chosen = (*LORA, *TWO, "train.steps=2", "checkpoint.every_steps=2")
    train(tmp_path, "named", *chosen)
    rows = predicted_rows(tmp_path, options("named", *chosen))
    values = [[float(row[f"probability_{n}"]) for n in range(10)] for row in rows]
    outputs, _ = exported_outputs(tmp_path, options("named", *chosen), 16)
    np.testing.assert_allclose(outputs["probabilities"], values, rtol=0, atol=1e-6)
    assert np.std(values, axis=0).max() > 1e-3


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("conv_net", ["train.lora.layers=[covn]"], "train.lora.layers .'covn'. matches no weight"),
        ("conv_net", [], "train.lora.layers .'.'.: dense.* constraints"),
    ],
)
def test_layer_that_cannot_have_adapters_is_refused(tmp_path, model, overrides, message):
    with pytest.raises(ConfigError, match=message):
        engine(tmp_path, model, "train.lora.rank=2", *overrides)


def test_model_of_tf_keras_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train.lora.rank \(2\) needs a model of Keras 3"):
        engine(
            tmp_path,
            "conv_net",
            "train.lora.rank=2",
            "model._target_=trainer.models.softmax.softmax",
        )
