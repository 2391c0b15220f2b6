"""The D4PG task: its losses by NumPy, actions and their bounds, and what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.protocols import EnvSpec, ModelNode, OptimizerNode
from trainer.reinforcement.tasks.d4pg import D4PG

SPEC = EnvSpec(
    observation_shape=(2,),
    observation_dtype="float32",
    action_shape=(1,),
    action_dtype="float32",
    num_actions=None,
    low=(-1.0,),
    high=(3.0,),
)
DISCOUNT, ATOMS = 0.9, np.linspace(-2.0, 4.0, 7)


class Parts:
    """Builds models of one layer and plain gradient descent."""

    def __init__(self, spec=SPEC):
        self.env = spec

    def model(self, node, input_shape, outputs):
        return tf.keras.Sequential([tf.keras.Input(input_shape), tf.keras.layers.Dense(outputs)])

    def optimizer(self, node):
        return tf.keras.optimizers.legacy.SGD(0.1)


def built(spec=SPEC, **options):
    task = D4PG(
        **{name: ModelNode(name, {}) for name in ("policy", "critic")},
        **{f"{name}_optimizer": OptimizerNode(name, {}) for name in ("policy", "critic")},
        **{
            "unroll_length": 3,
            "num_steps": 2,
            "discount": DISCOUNT,
            "value_min": -2.0,
            "value_max": 4.0,
            "num_atoms": 7,
            "tau": 0.5,
            **options,
        },
    )
    task.build(Parts(spec))
    return task


def batch(size=4, length=3):
    """Return unrolls whose middle row ends an episode: by a terminal state, or by a time limit."""
    rng = np.random.default_rng(0)
    middle = length // 2
    is_step = np.ones([size, length], np.float32)
    is_step[1::2, middle + 1] = 0
    terminated = np.zeros([size, length], np.float32)
    terminated[3::4, middle] = 1
    return {
        "observation": rng.normal(size=[size, length + 1, 2]).astype(np.float32),
        "action": rng.uniform(-1, 3, [size, length, 1]).astype(np.float32),
        "reward": rng.normal(size=[size, length]).astype(np.float32) * is_step,
        "terminated": terminated,
        "is_step": is_step,
        "weight": np.ones([size], np.float32),
    }


def weights_of(task):
    rng = np.random.default_rng(1)
    for model in task.models.values():
        model.set_weights([rng.normal(size=x.shape) for x in model.get_weights()])
    return {name: [x.astype(float) for x in m.get_weights()] for name, m in task.models.items()}


def softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def expected_critic_losses(data, weights, num_steps):
    """Walk every row of every unroll."""

    def policy(observation):
        kernel, bias = weights["policy_target"]
        return np.tanh(observation @ kernel + bias)

    def critic(name, observation, action):
        kernel, bias = weights[name]
        return np.concatenate([observation, action]) @ kernel + bias

    size, length = data["reward"].shape
    losses = np.zeros(size)
    for b, first in np.argwhere(data["is_step"] > 0):
        total, factor, row = 0.0, 1.0, first
        while row < min(first + num_steps, length) and data["is_step"][b, row] and factor:
            total += factor * data["reward"][b, row]
            factor *= DISCOUNT * (1 - data["terminated"][b, row])
            row += 1
        following = data["observation"][b, row]
        probabilities = softmax(critic("critic_target", following, policy(following)))
        target = np.zeros(7)
        for value, probability in zip(total + factor * ATOMS, probabilities, strict=True):
            place = np.clip(value, -2.0, 4.0) + 2.0  # atoms are 1 apart
            below = int(min(np.floor(place), 5))
            target[below] += probability * (below + 1 - place)
            target[below + 1] += probability * (place - below)
        action = (data["action"][b, first] - 1.0) / 2.0
        logits = critic("critic", data["observation"][b, first], action)
        losses[b] -= (target * np.log(softmax(logits))).sum() / length
    return losses


def losses_of(task, data):
    """Return the losses of the critic and of the policy, [B] both, without an update."""
    step = SimpleNamespace(
        minimize=lambda loss_fn, batch, model, optimizer: {"loss": loss_fn(batch)[0]},
        soft_update=lambda target, source, tau: None,
    )
    metrics = task.train_step({name: tf.constant(value) for name, value in data.items()}, step)
    return metrics["loss"], metrics["policy_loss"]


@pytest.mark.parametrize("num_steps", [1, 3, 9])
def test_critic_loss_is_that_of_a_walk(num_steps):
    """Targets are n-step returns, projected on the atoms; some are on one or beyond the last."""
    task = built(num_steps=num_steps)
    data = batch(8, 7)
    data["reward"][0] = 9.0
    weights = weights_of(task)
    losses, _ = losses_of(task, data)
    np.testing.assert_allclose(losses, expected_critic_losses(data, weights, num_steps), rtol=1e-5)


def test_policy_loss_is_the_negative_mean_return_of_its_actions():
    task = built()
    data = batch()
    weights = weights_of(task)
    _, losses = losses_of(task, data)
    observations = data["observation"][:, :-1].astype(float)
    actions = np.tanh(observations @ weights["policy"][0] + weights["policy"][1])
    pair = np.concatenate([observations, actions], axis=-1)
    logits = pair @ weights["critic"][0] + weights["critic"][1]
    means = np.apply_along_axis(lambda x: softmax(x) @ ATOMS, -1, logits)
    np.testing.assert_allclose(losses, -(means * data["is_step"]).mean(axis=1), rtol=1e-5)


def after_a_step(strategy):
    """Make one step on all replicas, each with its part of a batch; return the task and before."""
    with strategy.scope():
        task = built()
        weights_of(task)
        for name in ("policy", "critic"):
            task.models[f"{name}_target"].set_weights(task.models[name].get_weights())
    before = {name: model.get_weights() for name, model in task.models.items()}
    count = strategy.num_replicas_in_sync

    def on_replica():
        step = Step(tf.constant(0, tf.int64), StepOptions(), CollectiveLog())
        part = {name: tf.constant(x[step.replica :: count]) for name, x in batch(8).items()}
        metrics = task.train_step(part, step)
        step.end()
        return metrics

    metrics = tf.function(lambda: strategy.run(on_replica), autograph=False)()
    assert set(metrics) == set(task.metrics)
    return task, before


def test_step_moves_each_model_by_its_own_loss_and_targets_behind():
    models = built().models
    for name in ("policy", "critic"):  # targets begin with the weights of their models
        for own, target in zip(models[name].weights, models[f"{name}_target"].weights, strict=True):
            np.testing.assert_array_equal(own, target)
    task, before = after_a_step(tf.distribute.OneDeviceStrategy("CPU:0"))
    for name in ("policy", "critic"):
        model, target = task.models[name], task.models[f"{name}_target"]
        for old, new, moved in zip(
            before[name], model.get_weights(), target.get_weights(), strict=True
        ):
            assert np.any(old != new)
            np.testing.assert_allclose(moved, (old + new) / 2, atol=1e-6)
        assert not target.trainable_variables


@pytest.mark.slow
def test_two_replicas_make_the_step_of_one():
    one, _ = after_a_step(tf.distribute.OneDeviceStrategy("CPU:0"))
    two, _ = after_a_step(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    for name, model in one.models.items():
        for own, other in zip(model.get_weights(), two.models[name].get_weights(), strict=True):
            np.testing.assert_allclose(own, other, atol=1e-5)


def test_actions_are_within_bounds_and_noise_follows_from_the_seed():
    task = built(noise=0.5)
    observations = tf.random.stateless_normal([500, 2], [0, 0])
    exploration = (tf.range(500.0) + 1.0) / 500.0

    def act(observations, seed):
        return tf.function(task.act, autograph=False)(observations, seed, exploration)

    first = act(observations, tf.constant([1, 2], tf.int64))["action"].numpy()
    assert first.shape == (500, 1)
    assert first.min() >= -1.0
    assert first.max() <= 3.0
    np.testing.assert_array_equal(first, act(observations, tf.constant([1, 2], tf.int64))["action"])
    assert np.any(first != act(observations, tf.constant([1, 3], tf.int64))["action"])
    kernel, bias = task.models["policy"].get_weights()
    greedy = 1.0 + 2.0 * np.tanh(observations.numpy() @ kernel + bias)
    np.testing.assert_allclose(task.act_greedily(observations), greedy, atol=1e-5)
    distance = np.abs(first - greedy)
    assert distance[:100].mean() < distance[400:].mean(), "the last environments explore further"
