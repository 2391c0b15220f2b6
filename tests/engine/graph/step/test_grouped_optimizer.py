"""Groups of weights: each is updated as by a separate optimizer, to the bit."""

from importlib import import_module

import numpy as np
import pytest
import tensorflow as tf

from tests.support.choices import listed
from trainer.engine.graph.state.train_state import optimizer_trackables
from trainer.engine.graph.state.weight_paths import weights_of
from trainer.engine.graph.step.grouped_optimizer import GroupedOptimizer, GroupRules
from trainer.engine.graph.step.update_check import Clip, clip
from trainer.errors import ConfigError
from trainer.optimizers.adam import adam
from trainer.optimizers.sgd import sgd
from trainer.schedules.cosine import cosine
from trainer.schedules.schedule import scale

STEPS = 6
OPTIMIZERS = {
    name: getattr(import_module(f"trainer.optimizers.{name}"), name)
    for name in listed("optimizer").split(", ")
}


def quick(*names):
    """Return all optimizers, of which these are not left to the long tests."""
    return [pytest.param(x, marks=[] if x in names else pytest.mark.long) for x in OPTIMIZERS]


def schedule():
    return cosine(0.1, STEPS, 10)


def network():
    """Return a net of three layers with the weights of a seed."""
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Dense(3, name=name) for name in ("first", "second", "head")]
    return tf.keras.Sequential([tf.keras.Input([4]), *layers])


def grouped(model, build, groups=None, layer_decay=None):
    """Return an optimizer of groups, bound to a model."""

    def make(own, factor):
        options = {name: value for name, value in own.items() if name != "learning_rate"}
        return build(scale(schedule(), factor), **options)

    optimizer = GroupedOptimizer(GroupRules("optimizer", groups or {}, layer_decay), make)
    optimizer.bind(weights_of({"model": model}))
    return optimizer


def gradients(step, variables):
    random = np.random.RandomState(step)
    return [tf.constant(random.standard_normal(v.shape), tf.float32) for v in variables]


def steps(optimizer, model, indices, numbers=range(STEPS), *, in_rows=False):
    """Update some variables of a model by the gradients of all."""
    variables = model.trainable_variables

    @tf.function
    def update(*values):
        if in_rows:
            values = [tf.IndexedSlices(x, tf.range(x.shape[0])) for x in values]
        optimizer.apply_gradients(
            [(values[i], variables[i]) for i in indices], experimental_aggregate_gradients=False
        )

    for number in numbers:
        update(*gradients(number, variables))


def assert_same_weights(model, other):
    for value, wanted in zip(model.get_weights(), other.get_weights(), strict=True):
        assert value.tobytes() == wanted.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick("adam", "sgd", "muon"))
def test_group_is_updated_as_by_an_optimizer_of_its_own(name):
    build, model, expected = OPTIMIZERS[name], network(), network()
    steps(grouped(model, build, {"head": {"learning_rate": "10x"}}), model, range(6))
    steps(build(schedule()), expected, range(4))
    steps(build(scale(schedule(), 10.0)), expected, [4, 5])
    assert_same_weights(model, expected)


def test_rows_are_updated_as_a_dense_gradient_by_group():
    models = [network(), network()]
    for model, in_rows in zip(models, (True, False), strict=True):
        groups = {"head": {"learning_rate": "10x"}}
        optimizer = grouped(model, lambda rate: sgd(rate, momentum=0.0), groups)
        assert optimizer.updates_rows(model.trainable_variables[0])
        steps(optimizer, model, range(6), range(4), in_rows=in_rows)
    assert_same_weights(*models)


def test_layer_decay_multiplies_the_rate_from_layer_to_layer():
    model = network()
    before = model.get_weights()
    optimizer = grouped(model, lambda rate: sgd(rate, momentum=0.0), layer_decay=0.5)
    steps(optimizer, model, range(6), [0])
    moved = [old - new for old, new in zip(before, model.get_weights(), strict=True)]
    for i, gradient in enumerate(gradients(0, model.trainable_variables)):
        factor = 0.5 ** (2 - i // 2)
        np.testing.assert_allclose(moved[i], 0.1 * factor * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"haed": {"learning_rate": "2x"}}, r"optimizer.groups \('haed'\) matches no weight; the"),
        (
            {"head": {"learning_rate": "2x"}, "bias": {"learning_rate": "3x"}},
            "'head' and 'bias' both give head/bias a learning_rate",
        ),
        (
            {"head": {"clip_norm": 1.0}, "bias": {"clip_value": 1.0}},
            "'head' and 'bias' both give head/bias a clip_value",
        ),
    ],
)
def test_groups_that_are_ambiguous_or_empty_are_refused(groups, message):
    with pytest.raises(ConfigError, match=message):
        grouped(network(), adam, groups)


def test_groups_may_have_other_slots():
    model, expected = network(), network()
    optimizer = grouped(model, sgd, {"head": {"momentum": 0.0}})
    steps(optimizer, model, range(6))
    steps(sgd(schedule()), expected, range(4))
    steps(sgd(schedule(), momentum=0.0), expected, [4, 5])
    assert_same_weights(model, expected)
    saved = optimizer_trackables(optimizer, model.trainable_variables)
    assert len(saved["slots"]["momentum"]) == 4
    assert saved["others"] == [optimizer.iterations]


def test_groups_are_clipped_apart():
    model = network()
    variables = model.trainable_variables
    optimizer = grouped(
        model, adam, {"first": {"clip_norm": 0.5}, "head/bias": {"clip_value": 0.1}}
    )
    given = gradients(0, variables)
    clipped = clip(given, tf.linalg.global_norm(given), variables, optimizer, Clip(norm=0.25))
    norm = tf.linalg.global_norm
    np.testing.assert_allclose(norm(clipped[:2]), 0.5, rtol=1e-6)
    np.testing.assert_allclose(norm(clipped[2:5]), 0.25, rtol=1e-6)
    np.testing.assert_allclose(clipped[5], np.clip(given[5], -0.1, 0.1))
    np.testing.assert_allclose(clipped[0] / given[0], (clipped[1] / given[1])[0], rtol=1e-5)


def test_clip_of_all_weights_is_by_norm_or_by_value():
    given = gradients(0, network().trainable_variables)
    norm = tf.linalg.global_norm(given)
    by_value = clip(given, norm, [], None, Clip(value=0.5))
    for value, gradient in zip(by_value, given, strict=True):
        np.testing.assert_allclose(value, np.clip(gradient, -0.5, 0.5))
    assert clip(given, norm, [], None, Clip()) is given
