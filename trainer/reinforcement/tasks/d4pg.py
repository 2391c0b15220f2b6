"""Control by continuous actions from replayed experience: D4PG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le
from trainer.errors import ConfigError
from trainer.protocols import (
    Batch,
    EnvSpec,
    Metrics,
    ModelNode,
    OptimizerNode,
    PerExample,
    StepContext,
    TaskParts,
)

_UNBOUNDED = 1e30
"""Gymnasium writes no bound as infinity, or as the largest float32."""


class D4PG:
    """Distributed distributional deterministic policy gradients (Barth-Maron et al. 2018).

    A critic learns the distribution of the return of an action, from the n-step returns of unrolls
    and the target networks; the policy goes up the gradient of its mean. Every row of an unroll is
    trained on: the last ones with as many steps as the unroll still has.

    Args:
        policy: a model from observations to the components of an action, before `tanh`.
        critic: a model from an observation and an action, flat in one vector, to the logits of a
            distribution.
    """

    metrics = ("loss", "policy_loss")
    direction: ClassVar = {"loss": "min", "return": "max"}
    primary_metric = "return"

    def __init__(  # noqa: PLR0913 - its options are configuration keys
        self,
        *,
        policy: ModelNode,
        critic: ModelNode,
        policy_optimizer: OptimizerNode,
        critic_optimizer: OptimizerNode,
        unroll_length: Annotated[int, Ge(1)] = 8,
        num_steps: Annotated[int, Ge(1)] = 5,
        discount: Annotated[float, Gt(0), Le(1)] = 0.99,
        value_min: float = -100.0,
        value_max: float = 100.0,
        num_atoms: Annotated[int, Ge(2)] = 51,
        noise: Annotated[float, Ge(0)] = 0.5,
        tau: Annotated[float, Gt(0), Le(1)] = 0.005,
    ) -> None:
        if value_min >= value_max:
            raise ConfigError(
                f"task.value_min ({value_min:g}) must be below task.value_max ({value_max:g}); "
                "make them the least and the largest return to expect"
            )
        self._nodes = {"policy": policy, "critic": critic}
        self._optimizers = {"policy": policy_optimizer, "critic": critic_optimizer}
        self.unroll_length = unroll_length
        self.acting_models = ("policy",)
        self._num_steps = num_steps
        self._discount = discount
        self._support = Support(value_min, value_max, num_atoms)
        self._num_atoms = num_atoms
        self._noise = noise
        self._tau = tau
        self._shape: tuple[int, ...] = ()
        self._center: list[float] = []
        self._half: list[float] = []
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        spec, low, high = _bounds(parts.env)
        size = len(low)
        self._shape = spec.action_shape
        self._center = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        self._half = [(b - a) / 2 for a, b in zip(low, high, strict=True)]
        shapes = {
            "policy": (spec.observation_shape[0],),
            "critic": (spec.observation_shape[0] + size,),
        }
        outputs = {"policy": size, "critic": self._num_atoms}
        for name, node in self._nodes.items():
            model, target = (
                parts.model(node, input_shape=shapes[name], outputs=outputs[name]) for _ in range(2)
            )
            target.set_weights(model.get_weights())
            target.trainable = False
            self.models |= {name: model, f"{name}_target": target}
            self.optimizers[name] = parts.optimizer(self._optimizers[name])

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Update the critic, then the policy; the target networks follow."""
        evaluated = step.minimize(
            self._critic_loss, batch, self.models["critic"], self.optimizers["critic"]
        )
        acted = step.minimize(
            self._policy_loss, batch, self.models["policy"], self.optimizers["policy"]
        )
        for name in self._nodes:
            step.soft_update(self.models[f"{name}_target"], self.models[name], self._tau)
        return {**evaluated, "policy_loss": acted["loss"]}

    def act(
        self, observations: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the policy's actions with Gaussian noise, [N, ...] float32.

        The environments of an actor explore more or less far (Horgan et al. 2018): the noise of
        number e of E is multiplied by (e + 1) / E.
        """
        actions = self._actions("policy", observations)
        deviation = self._noise * exploration
        noise = deviation[:, None] * tf.random.stateless_normal(tf.shape(actions), seed)
        return {"action": self._scaled(tf.clip_by_value(actions + noise, -1.0, 1.0))}

    def act_greedily(self, observations: tf.Tensor) -> tf.Tensor:
        return self._scaled(self._actions("policy", observations))

    def _critic_loss(self, batch: Batch) -> PerExample:
        """Return the cross-entropy of the target and the critic's distribution, a mean of rows."""
        observations = batch["observation"]
        actions = self._unscaled(batch["action"])
        logits = self._critic("critic", observations[:, :-1], actions, training=True)
        targets = tf.stop_gradient(self._targets(batch))
        losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
        return _mean_of_steps(losses, batch), {}

    def _policy_loss(self, batch: Batch) -> PerExample:
        """Return the negative mean return of the policy's own actions, a mean of rows."""
        observations = batch["observation"][:, :-1]
        actions = self._actions("policy", observations, training=True)
        logits = self._critic("critic", observations, actions)
        return _mean_of_steps(-self._support.mean(logits), batch), {}

    def _targets(self, batch: Batch) -> tf.Tensor:
        """Return the distributions that the critic learns, [B, T, num_atoms] float32."""
        rewards, discounts, rows = n_step_returns(
            batch["reward"],
            batch["terminated"],
            batch["is_step"],
            discount=self._discount,
            num_steps=self._num_steps,
        )
        following = tf.gather(batch["observation"], rows, axis=1, batch_dims=1)
        actions = self._actions("policy_target", following)
        probabilities = tf.nn.softmax(self._critic("critic_target", following, actions))
        values = rewards[..., None] + discounts[..., None] * self._support.atoms
        return self._support.project(values, probabilities)

    def _actions(self, name: str, observations: tf.Tensor, *, training: bool = False) -> tf.Tensor:
        """Return a policy's actions as components in [-1, 1], [..., components]."""
        observations = tf.cast(observations, tf.float32)
        return tf.tanh(_on_rows(self.models[name], observations, training=training))

    def _critic(
        self, name: str, observations: tf.Tensor, actions: tf.Tensor, *, training: bool = False
    ) -> tf.Tensor:
        """Return a critic's logits, [..., num_atoms], of components in [-1, 1]."""
        pair = tf.concat([tf.cast(observations, tf.float32), actions], axis=-1)
        return _on_rows(self.models[name], pair, training=training)

    def _scaled(self, components: tf.Tensor) -> tf.Tensor:
        """Return the environment's actions, [E, ...], of components in [-1, 1], [E, ...]."""
        return tf.reshape(self._center + components * self._half, [-1, *self._shape])

    def _unscaled(self, actions: tf.Tensor) -> tf.Tensor:
        """Return components in [-1, 1], [B, T, components], of the environment's actions."""
        flat = tf.reshape(actions, [*actions.shape[:2], len(self._half)])
        return (tf.cast(flat, tf.float32) - self._center) / self._half


class Support:
    """The values, *atoms*, that a return can have (Bellemare, Dabney and Munos 2017)."""

    def __init__(self, value_min: float, value_max: float, num_atoms: int) -> None:
        self._min = value_min
        self._max = value_max
        self._distance = (value_max - value_min) / (num_atoms - 1)
        self._num_atoms = num_atoms

    @property
    def atoms(self) -> tf.Tensor:
        """The values, [num_atoms] float32, ascending and evenly spaced; new in each graph."""
        return tf.linspace(tf.constant(self._min, tf.float32), self._max, self._num_atoms)

    def mean(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the mean of distributions, [...], from their logits, [..., num_atoms]."""
        return tf.reduce_sum(tf.nn.softmax(logits) * self.atoms, axis=-1)

    def project(self, values: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
        """Return the distributions, [..., num_atoms], of values and their probabilities, [..., K].

        A value's probability is shared by the two atoms around it, the nearer one getting more; one
        beyond the atoms goes to the outermost.
        """
        clipped = tf.clip_by_value(values, self._min, self._max)
        distances = tf.abs(clipped[..., None, :] - self.atoms[:, None]) / self._distance
        shares = tf.clip_by_value(1.0 - distances, 0.0, 1.0)
        return tf.linalg.matvec(shares, probabilities)


def n_step_returns(
    reward: tf.Tensor, terminated: tf.Tensor, is_step: tf.Tensor, *, discount: float, num_steps: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the n-step returns of each row (Sutton 1988), of at most `num_steps` steps.

    They are fewer where the episode or the unroll ends before. A terminal state has no value. An
    episode that a time limit cuts has one: that of its last observation.

    Args:
        reward: [B, T] float32.
        terminated: [B, T] float32, 1: a terminal state follows the row.
        is_step: [B, T] float32, 0: the row only resets the environment; its observation is the last
            one of the episode before. What is returned of such a row means nothing.

    Returns:
        The discounted sum of rewards, [B, T] float32; the factor of the value that follows, [B, T]
        float32, 0 after a terminal state; the observation that has this value, [B, T] int32 in
        [1, T].
    """
    length = int(reward.shape[1])
    total = tf.zeros_like(reward)
    factor = tf.ones_like(reward)
    continues = tf.ones_like(reward)
    row = tf.zeros_like(reward, tf.int32) + tf.range(length)

    def later(rows: tf.Tensor, offset: int) -> tf.Tensor:
        return tf.pad(rows[:, offset:], [[0, 0], [0, offset]])

    for offset in range(min(num_steps, length)):
        continues *= later(is_step, offset)  # 0 beyond the unroll too
        total += continues * factor * later(reward, offset)
        row += tf.cast(continues, tf.int32)
        ends = continues * later(terminated, offset)
        factor *= tf.where(continues > 0.0, discount * (1.0 - ends), 1.0)
        continues *= 1.0 - ends
    return total, factor, row


def _bounds(spec: EnvSpec | None) -> tuple[EnvSpec, Sequence[float], Sequence[float]]:
    """Return the environment, the lowest and the highest action."""
    if spec is None:
        raise ConfigError("task (d4pg) learns from an environment; add env=<choice>")
    if spec.low is None or spec.high is None:
        raise ConfigError(
            f"task (d4pg) needs actions that are vectors (Box), and env numbers its "
            f"{spec.num_actions}; choose another env or task"
        )
    if not all(-_UNBOUNDED < a < b < _UNBOUNDED for a, b in zip(spec.low, spec.high, strict=True)):
        raise ConfigError(
            f"task (d4pg) needs bounds of every component of an action, and those of env are "
            f"{list(spec.low)} to {list(spec.high)}; wrap the environment"
        )
    if len(spec.observation_shape) != 1:
        raise ConfigError(
            f"task (d4pg) needs observations that are vectors, and those of env have the shape "
            f"{list(spec.observation_shape)}; wrap the environment"
        )
    return spec, spec.low, spec.high


def _on_rows(model: tf.keras.Model, inputs: tf.Tensor, *, training: bool) -> tf.Tensor:
    """Apply a model to inputs, [..., size]; the outputs are float32, in any precision."""
    flat = model(tf.reshape(inputs, [-1, inputs.shape[-1]]), training=training)
    flat = tf.cast(flat, tf.float32)
    return tf.reshape(flat, [*tf.unstack(tf.shape(inputs))[:-1], flat.shape[-1]])


def _mean_of_steps(values: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return the sums of values, [B, T], over the rows with an action, by the unroll's length."""
    return tf.reduce_mean(values * batch["is_step"], axis=1)
