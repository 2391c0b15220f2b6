import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.keras_archives import rewritten, write_on_loading
from tests.support.training import finish, short_engine
from trainer.models.saved import saved

SHAPE = (8, 8, 1)
KINDS = {"tf_keras": tf.keras, "keras": keras}


def network(kind, *, outputs=10, activation=None):
    library = KINDS[kind]
    inputs = library.Input(SHAPE)
    x = library.layers.Conv2D(4, 3, activation="relu")(inputs)
    x = library.layers.Flatten()(library.layers.BatchNormalization()(x))
    return library.Model(inputs, library.layers.Dense(outputs, activation=activation)(x))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_begins_with_the_weights_of_the_file(kind, suffix, tmp_path):
    model = network(kind)
    file = tmp_path / f"model.{suffix}"
    model.save(file)
    loaded = saved(SHAPE, 10, path=str(file))
    assert isinstance(loaded, KINDS[kind].Model)
    for value, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
    options = ("model=saved", f"model.path={file}", "optimizer.learning_rate=1e-9")
    state = finish(short_engine(tmp_path / "run", *options))
    kernels = [value for value in state.values() if value.shape == (3, 3, 1, 4)]
    np.testing.assert_allclose(kernels[0], model.get_weights()[0], atol=1e-6)


class Doubled(tf.keras.layers.Layer):
    def call(self, inputs):
        return 2.0 * inputs


class Doubled3(keras.layers.Layer):
    def call(self, inputs):
        return 2.0 * inputs


def refused(file, message, shape=SHAPE, classes=10):
    with pytest.raises(ValueError, match=message) as caught:
        saved(shape, classes, path=str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_do_not_fit_the_dataset_are_refused(kind, tmp_path):
    file = tmp_path / "model.keras"
    network(kind).save(file)
    refused(file, r"input is \[8, 8, 1\] .*, but the dataset's is \[28, 28, 1\]; ", (28, 28, 1))
    refused(file, r"the model's output is \[10\] for each example, but .* is \[5\]; ", classes=5)
    library = KINDS[kind]
    first, second = library.Input(SHAPE), library.Input(SHAPE)
    library.Model([first, second], library.layers.Add()([first, second])).save(file)
    refused(file, r"the model has 2 inputs, but must have one; ")
    library.Sequential([library.layers.Dense(10)]).save(file)
    refused(file, r"the model has no input of a known shape; ")


def test_files_that_are_no_models_are_refused(tmp_path):
    file = tmp_path / "model.keras"
    file.write_text("hello")
    refused(file, r"^path \(.*\) is not a whole model of Keras; write it with model\.save")
    network("tf_keras").save_weights(tmp_path / "weights.h5")
    refused(tmp_path / "weights.h5", r"is not a whole model of Keras; ")


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_code_in_a_file_is_not_run(suffix, tmp_path):
    inputs = tf.keras.Input(SHAPE)
    file = tmp_path / f"model.{suffix}"
    tf.keras.Model(inputs, tf.keras.layers.Lambda(lambda x: x + 1)(inputs)).save(file)
    refused(file, r"the model has Lambda, whose code would be run unseen: .*model\.allow=\[")


def test_operations_that_a_file_names_are_not_run(tmp_path):
    file = tmp_path / "model.keras"
    network("tf_keras").save(file)
    rewritten(file, lambda config, _: write_on_loading(config, tmp_path / "written"))
    place = r"tf_keras\.src\.layers\.core\.tf_op_layer\.TFOpLambda"
    refused(file, rf"the model has TFOpLambda, .* add model\.allow=\[{place}\]$")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"module": "subprocess", "class_name": "Popen", "config": {"args": "id"}}, "Popen"),
        ({"module": "os", "class_name": "Dense", "config": {}}, "Dense"),
        ({"module": "os", "class_name": "function", "config": "system"}, "function"),
        ({"module": "builtins", "class_name": "function", "config": "exec"}, "function"),
        ({"module": "keras.layers", "class_name": "TFSMLayer", "config": {}}, "TFSMLayer"),
        ({"module": None, "class_name": "__lambda__", "config": {}}, "__lambda__"),
        ({"module": "keras.utils", "class_name": "get_file", "config": {}}, "get_file"),
        ({"module": "keras.layers", "class_name": "Dense", "registered_name": "a>Dense"}, "Dense"),
        ({"module": "keras.layers", "class_name": ["Dense"]}, r"\['Dense'\]"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_classes_that_are_no_layers_of_keras_are_refused(kind, node, name, tmp_path):
    file = tmp_path / "model.keras"
    network(kind).save(file)
    rewritten(file, lambda config, _: config["config"]["layers"][1]["config"].update(x=[node]))
    refused(file, rf"the model has {name}, whose code would be run unseen: ")


@pytest.mark.parametrize(("kind", "suffix"), [("tf_keras", "h5"), ("keras", "keras")])
def test_layers_of_the_user_are_built_when_they_are_allowed(kind, suffix, tmp_path):
    file, layer = tmp_path / f"model.{suffix}", {"tf_keras": Doubled, "keras": Doubled3}[kind]
    library = KINDS[kind]
    inputs = library.Input(SHAPE)
    x = library.layers.Dense(10)(library.layers.Flatten()(layer()(inputs)))
    model = library.Model(inputs, x)
    model.save(file)
    name = layer.__name__
    refused(file, rf"the model has {name}, .*add model\.allow=\[my_package\.{name}\]$")
    allowed = saved(SHAPE, 10, path=str(file), allow=[f"{__name__}.{name}"])
    np.testing.assert_array_equal(allowed.get_weights()[0], model.get_weights()[0])
    with pytest.raises(ValueError, match=r"^allow \(my\.Own\) cannot be imported: "):
        saved(SHAPE, 10, path=str(file), allow=["my.Own"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_keras_are_built(kind, tmp_path):
    library = KINDS[kind]
    layers, file = library.layers, tmp_path / "model.keras"
    inputs = library.Input(SHAPE)
    x = layers.Rescaling(2.0)(layers.RandomFlip()(inputs))
    x = layers.Conv2D(3, 2, activation=library.activations.gelu, kernel_regularizer="l2")(x)
    x = layers.Dense(4, kernel_constraint="max_norm")(x)
    x = layers.Reshape((49, 4))(x)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)], return_sequences=True)(x)
    x = layers.TimeDistributed(library.Sequential([layers.Dense(3), layers.PReLU()]))(x)
    x = layers.MultiHeadAttention(2, 2)(x, x)
    x = x + 1.0 if kind == "keras" else x
    x = layers.Dense(10, dtype="float32")(layers.GlobalAveragePooling1D()(x))
    library.Model(inputs, x).save(file)
    assert isinstance(saved(SHAPE, 10, path=str(file)), library.Model)
