"""Preprocessing layers of both Kerases learn once; what a run keeps is as good."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.adapted_layers import AdaptedLayers
from trainer.errors import ConfigError
from trainer.files import read_json
from trainer.runs.directory import adapted_file

NOWHERE = Path("nowhere")
Normalization = keras.layers.Normalization
NUMBERS = np.float32([[1.1], [2.3], [5.7], [0.2]])
WORDS = np.array([["a b"], ["b c"], ["b"], ["d"]])
IDS = np.int64([[4], [7], [4], [9]])


def lower(text):
    return tf.strings.lower(text)


KINDS = {
    "normalization": (lambda layers: layers.Normalization(), NUMBERS),
    "normalization in 16 bits": (lambda layers: layers.Normalization(dtype="float16"), NUMBERS),
    "discretization": (lambda layers: layers.Discretization(num_bins=3), NUMBERS),
    "words": (lambda layers: layers.StringLookup(max_tokens=4), WORDS),
    "weighted words": (
        lambda layers: layers.StringLookup(9, output_mode="tf_idf", pad_to_max_tokens=True),
        WORDS,
    ),
    "ids": (lambda layers: layers.IntegerLookup(output_mode="multi_hot"), IDS),
    "texts": (lambda layers: layers.TextVectorization(standardize=lower), WORDS),
    "weighted texts": (lambda layers: layers.TextVectorization(output_mode="tf_idf"), WORDS),
}


class Unread:
    """Data that nobody may read."""

    def __iter__(self):
        raise AssertionError("the data were read again")


def adapted(run_dir, make, data, **options):
    layer = make()
    with AdaptedLayers(run_dir, **{"adapts": True, "writes": True, **options}).restored():
        layer.adapt(data)
    return layer


@pytest.mark.parametrize("layers", [tf.keras.layers, keras.layers], ids=["tf_keras", "keras"])
@pytest.mark.parametrize("kind", KINDS)
def test_layer_learns_once(tmp_path, layers, kind):
    make, data = KINDS[kind]
    plain = make(layers)
    plain.adapt(data)
    first = adapted(tmp_path, lambda: make(layers), data)
    again = adapted(tmp_path, lambda: make(layers), Unread(), adapts=False)
    outputs = [np.asarray(layer(data)) for layer in (first, again)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    tolerance = 1e-2 if "16" in kind else 1e-6  # it learns in float32 here
    np.testing.assert_allclose(outputs[0], np.asarray(plain(data)), rtol=tolerance, atol=tolerance)


def test_methods_of_keras_are_as_before_after_an_error(tmp_path):
    before = keras.layers.StringLookup.adapt, keras.layers.Normalization.adapt
    with pytest.raises(TypeError, match="Unsupported"):
        adapted(tmp_path, Normalization, None)
    assert (keras.layers.StringLookup.adapt, keras.layers.Normalization.adapt) == before


def test_other_processes_take_the_chiefs_state(tmp_path):
    texts = []

    class Group:
        def __init__(self, is_chief):
            self.is_chief = is_chief

        def broadcast_text_from_chief(self, text):
            texts.append(text)
            return texts[0]

    chief = adapted(NOWHERE, Normalization, NUMBERS, group=Group(True))
    other = adapted(NOWHERE, Normalization, Unread(), group=Group(False))
    assert texts[1] == ""
    assert np.array_equal(chief(NUMBERS), other(NUMBERS))


def test_only_the_process_that_writes_keeps_a_file(tmp_path):
    adapted(tmp_path, Normalization, NUMBERS, writes=False)
    assert not adapted_file(tmp_path).exists()
    adapted(tmp_path, Normalization, NUMBERS)
    assert [x["layer"] for x in read_json(adapted_file(tmp_path))["layers"]] == ["Normalization"]


def test_what_cannot_be_kept_or_restored_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"adapted.json lacks what Normalization normalization"):
        adapted(tmp_path, Normalization, NUMBERS, adapts=False)
    adapted(tmp_path, Normalization, NUMBERS)
    with pytest.raises(ConfigError, match=r"keeps what a Normalization .* adapts a StringLookup"):
        adapted(tmp_path, keras.layers.StringLookup, WORDS)

    def called():
        layer = Normalization()
        layer(NUMBERS)
        return layer

    with pytest.raises(ConfigError, match="adapted after it was called"):
        adapted(NOWHERE, called, NUMBERS)
