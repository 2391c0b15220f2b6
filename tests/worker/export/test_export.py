"""mode=export: its files, and that plain TensorFlow predicts the bits that the run predicts."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.outputs import export_run
from tests.support.processes import run_program
from tests.support.training import SMALL, engine
from trainer.cli.compose import compose
from trainer.config.instantiate import instantiate
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.split_loops import Loops
from trainer.worker.export import export, model_card

PLAIN = '''
import sys

BLOCKED = ("trainer", "models", "datasets", "hydra", "omegaconf", "tf_keras", "yaml")


class Blocked:
    """Lets only TensorFlow and its requirements be imported."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Blocked())
import numpy as np
import tensorflow as tf

inputs = np.load(sys.argv[2], allow_pickle=False)
batch_size = int(sys.argv[3])
signatures = tf.saved_model.load(sys.argv[1]).signatures
results = {}
for signature, name in (("serving_default", "features"), ("serving_images", "images")):
    if name == "features":
        content = inputs["features"]
    else:
        content = np.array([inputs["pngs"][a:b].tobytes() for a, b in inputs["places"]])
    rows = []
    for start in range(0, len(content), batch_size):
        part = content[start : start + batch_size]
        filled = np.concatenate([part, np.repeat(content[:1], batch_size - len(part), axis=0)])
        outputs = signatures[signature](**{name: tf.constant(filled)})
        rows.append({key: value[: len(part)] for key, value in outputs.items()})
    for key in ("probabilities", "label"):
        results[f"{name}_{key}"] = np.concatenate([row[key] for row in rows])
np.savez(sys.argv[4], **results)
assert not {"trainer", "hydra", "omegaconf", "tf_keras"} & set(sys.modules)
'''
"""A user's program: it predicts batches of the run's size, the last one filled up."""

EVERY_LAYER = (
    "model.batch_norm=true", "model.dropout=0.3", "train.ema_decay=0.9",
    "dataset.image_size=[12,10]", "dataset.normalize.mean=[0.3]", "dataset.normalize.std=[0.5]",
    "evaluate.every_steps=4", "checkpoint.every_steps=4",
)  # fmt: skip

ANY = SimpleNamespace(input_shape=(2,))
"""A dataset that a task does not hand to its model as it is."""


def exported(run_dir, *overrides):
    """Export a run that was trained with the same overrides; return the directory."""
    return export_run(run_dir, *SMALL, *overrides)


def predictions(predictor):
    return np.concatenate([chunk["probabilities"] for chunk in predictor.predict()])


def write_inputs(dataset, folder):
    """Write the test split as the model sees it, inputs.npz, and as PNG files; return those."""
    folder.mkdir(exist_ok=True)
    batch = dataset.test.fetch(tf.range(dataset.test.num_examples, dtype=tf.int64))
    pixels = tf.cast(
        tf.round(tf.cast(batch["features"], tf.float32) * (255.0 / dataset.max_value)), tf.uint8
    )
    pngs = [tf.io.encode_png(image).numpy() for image in pixels]
    ends = np.cumsum([len(png) for png in pngs])
    places = np.stack([ends - [len(png) for png in pngs], ends], axis=1)
    features = dataset.transform(batch, None)["features"]
    np.savez(
        folder / "inputs.npz",
        features=features,
        pngs=np.frombuffer(b"".join(pngs), np.uint8),
        places=places,
    )
    files = [folder / f"{number:04}.png" for number in range(len(pngs))]
    for file, png in zip(files, pngs, strict=True):
        file.write_bytes(png)
    return files


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained and exported run, with its own predictions."""
    run_dir = tmp_path_factory.mktemp("export") / "run"
    trained_engine = engine(run_dir, *EVERY_LAYER)
    trained_engine.train(lambda: False)
    dataset = instantiate(compose([*SMALL, *EVERY_LAYER]).dataset, "dataset")
    files = write_inputs(dataset, run_dir.parent / "inputs")
    # As mode=predict does with a folder of images.
    loops = Loops(trained_engine.loop.strategy, input_outside=False)
    source = Source(dataset.files(files), 16, 1)
    inference = Inference(
        compose([*SMALL, *EVERY_LAYER]),
        run_dir,
        trained_engine.channel,
        dataset,
        {},
        trained_engine.state,
        loops,
        trained_engine.process_group,
        16,
    )
    of_files = inference.predictor(source)
    directory = exported(run_dir, *EVERY_LAYER, "export.tflite=true")
    predicted = {"features": predictions(trained_engine.predictor), "images": predictions(of_files)}
    return SimpleNamespace(
        run_dir=run_dir,
        predicted=predicted,
        inputs=run_dir.parent / "inputs" / "inputs.npz",
        directory=directory,
    )


@pytest.mark.slow
def test_plain_tensorflow_predicts_the_same_bits(trained, tmp_path):
    program, predictions_file = tmp_path / "plain.py", tmp_path / "predictions.npz"
    program.write_text(PLAIN)
    saved = trained.directory / "saved_model"
    arguments = ["-I", program, saved, trained.inputs, "16", predictions_file]
    # Of this environment it keeps what selects kernels: others round otherwise.
    kernels = {name: value for name, value in os.environ.items() if "ONEDNN" in name}
    env = {"PATH": os.defpath, **kernels}
    run_program(sys.executable, *arguments, cwd=tmp_path, env=env)
    results = np.load(predictions_file)
    for name in ("features", "images"):
        assert results[f"{name}_probabilities"].tobytes() == trained.predicted[name].tobytes(), name
        np.testing.assert_array_equal(
            results[f"{name}_label"], trained.predicted[name].argmax(axis=1)
        )


def test_weights_load_in_keras(trained):
    import tf_keras

    features = np.load(trained.inputs)["features"][:16]
    loaded = tf_keras.models.load_model(trained.directory / "model.h5")
    results = tf.nn.softmax(loaded(features, training=False))
    np.testing.assert_allclose(results, trained.predicted["features"][:16], atol=1e-6)


def test_tensorflow_lite_model_agrees(trained):
    interpreter = tf.lite.Interpreter(str(trained.directory / "model.tflite"))
    predict = interpreter.get_signature_runner("serving_default")
    features = np.load(trained.inputs)["features"][:40]
    results = predict(features=features)
    np.testing.assert_allclose(
        results["probabilities"], trained.predicted["features"][:40], atol=1e-5
    )


@pytest.mark.slow
def test_export_replaces_an_earlier_one_atomically(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    engine(run_dir, "train.steps=1").train(lambda: False)
    directory = exported(run_dir, "train.steps=1")
    before = (directory / "MODEL_CARD.md").stat().st_mtime_ns

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model_card, "text", killed)
        with pytest.raises(KeyboardInterrupt):
            exported(run_dir, "train.steps=1", "export.weights=keras")
    assert (directory / "MODEL_CARD.md").stat().st_mtime_ns == before
    assert (directory / "model.h5").exists()
    directory = exported(run_dir, "train.steps=1", "export.weights=keras")
    assert sorted(path.name for path in directory.iterdir()) == [
        "MODEL_CARD.md",
        "model.keras",
        "saved_model",
    ]
    assert [path.name for path in directory.parent.iterdir()] == ["model-1"]


class TwoInputs:
    """A task of a model of its own kind, with or without predictions."""

    def __init__(self, model, *, predicts):
        self.models = {"model": model}
        if predicts:
            self.predict_step = lambda batch: {"sum": model(batch["features"])[0]}


@pytest.mark.parametrize("predicts", [False, True])
@pytest.mark.parametrize("as_dict", [False, True])
def test_model_of_several_inputs_and_outputs_is_served(as_dict, predicts):
    left, right = (tf.keras.Input((2,), name=name) for name in ("left", "right"))
    # Not in alphabetical order, in which TensorFlow flattens a dict.
    inputs = {"right": right, "left": left} if as_dict else [left, right]
    model = tf.keras.Model(inputs, [left + right, left - right])
    task = TwoInputs(model, predicts=predicts)
    function = export._predicting_functions(task, ANY)["serving_default"]
    names = ("left", "right") if as_dict else ("input_1", "input_2")
    results = function(**{names[0]: tf.constant([[5.0, 3.0]]), names[1]: tf.constant([[1.0, 1.0]])})
    values = {name: value.numpy().tolist() for name, value in results.items()}
    expected = {"sum": [[6.0, 4.0]]}
    if not predicts:
        expected = {"output_1": [[6.0, 4.0]], "output_2": [[4.0, 2.0]]}
    assert values == expected
