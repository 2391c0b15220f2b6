"""Which device a layer belongs to: code, patterns, the layer around it, its input."""

import pytest
import tensorflow as tf

from trainer.engine.graph.placement.layer_placement import place_layers, stages
from trainer.errors import ConfigError

layers = tf.keras.layers


def net():
    inputs = tf.keras.Input([4], name="features")
    x = layers.ReLU(name="relu0")(layers.Dense(4, name="block0")(inputs))
    x = layers.ReLU(name="relu1")(layers.Dense(4, name="block1")(x))
    return tf.keras.Model(inputs, layers.Dense(2, name="logits")(x))


def nested():
    inputs = tf.keras.Input([4], name="image")
    backbone = tf.keras.Model(inputs, layers.Dense(3, name="inner")(inputs), name="backbone")
    outer = tf.keras.Input([4], name="features")
    x = layers.ReLU(name="after")(backbone(outer))
    return tf.keras.Model(outer, layers.Dense(2, name="logits")(x))


def place(model, placement, count=2, requested=None):
    return place_layers({"model": model}, placement, count, requested or {}).devices


def test_layer_without_variables_is_where_its_input_is():
    placed = place(net(), {"block0": 0, "block1": 1, "logits": 0})
    layers = ("features", "block0", "relu0", "block1", "relu1", "logits")
    assert placed == dict(zip(layers, (0, 0, 0, 1, 1, 0), strict=True))


def test_first_pattern_that_matches_the_whole_path_counts():
    placed = place(net(), {"block[1]": 1, "block.": 0, ".*": 1})
    assert (placed["block0"], placed["block1"], placed["logits"]) == (0, 1, 1)


def test_layers_within_a_model_are_where_it_is_unless_they_are_matched():
    around = place(nested(), {"backbone": 1, "logits": 0})
    assert around["backbone/inner"] == around["after"] == 1
    inner = place(nested(), {"backbone": 0, "backbone/inner": 1, "logits": 0})
    assert (inner["backbone"], inner["backbone/inner"]) == (0, 1)
    alone = place(nested(), {"backbone/inner": 1, "logits": 0})
    assert "backbone" not in alone
    assert alone["after"] == 1  # what comes out of the model is where its last layer is


def test_paths_begin_with_the_model_if_there_are_several():
    placed = place_layers({"g": net(), "d": net()}, {"g/.*": 0, "d/.*": 1}, 2, {})
    assert {path[0]: index for path, index in placed.devices.items()} == {"g": 0, "d": 1}


def test_balanced_cuts_between_layers_of_equal_cost():
    inputs = tf.keras.Input([8], name="features")
    x = inputs
    for number in range(4):
        x = layers.ReLU(name=f"relu{number}")(layers.Dense(8, name=f"dense{number}")(x))
    placed = place(tf.keras.Model(inputs, x), "balanced")
    assert [placed[f"dense{number}"] for number in range(4)] == [0, 0, 1, 1]
    assert placed["relu1"] == 0


def test_largest_stage_is_the_smallest_possible_and_an_activation_stays_with_its_layer():
    assert stages([5, 0, 0, 5, 0, 0], 2) == [0, 0, 0, 1, 1, 1]
    assert stages([9, 1, 1, 8, 2], 3) == [0, 0, 1, 1, 2]


def test_balanced_divides_a_model_within_the_model():
    placed = place(nested(), "balanced")
    assert (placed["backbone/inner"], placed["logits"]) == (0, 1)


class Subclassed(tf.keras.Model):
    """Two layers whose order only `call` knows."""

    def __init__(self):
        super().__init__(name="own")
        self.first, self.last = layers.Dense(4, name="first"), layers.Dense(2, name="last")

    def call(self, x):
        return self.last(self.first(x))


def subclassed():
    model = Subclassed()
    model(tf.zeros([1, 4]))
    return model


def test_layers_of_a_subclassed_model_are_named():
    assert place(subclassed(), {"first": 0, "last": 1}) == {"first": 0, "last": 1}


@pytest.mark.parametrize(
    ("model", "placement", "message"),
    [
        (net, {"blok0": 0, ".*": 1}, r"\(blok0\) matches no layer; did you mean 'block0'"),
        (net, {"xyz": 0, ".*": 1}, r"\(xyz\) matches no layer; the layers are features, "),
        (net, {"block0": 0}, r"has no device for the layers block1, logits; add .* '\.\*'"),
        (subclassed, "balanced", r"\(balanced\) needs a functional .*, and own is neither"),
    ],
)
def test_placements_that_do_not_fit_the_model_are_one_line(model, placement, message):
    with pytest.raises(ConfigError, match=f"^strategy.placement {message}"):
        place(model(), placement)


def test_more_devices_than_layers_are_refused():
    with pytest.raises(
        ConfigError, match=r"^strategy.devices_per_replica \(4\) .* layers .* \(3\)"
    ):
        place(net(), "balanced", 4)
