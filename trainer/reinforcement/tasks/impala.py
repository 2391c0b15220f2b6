"""IMPALA: an actor-critic whose actors may be behind the learner (Espeholt et al. 2018)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le
from trainer.errors import ConfigError
from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts


class Impala:
    """Trains one model from observations to logits of all actions and the value.

    The loss of an unroll is the mean over its frames of

        -advantage * log pi(a|x) + value_cost (v - V(x))^2 / 2 - entropy_cost * entropy

    with targets and advantages of V-trace. Frames that only reset the environment have no part.
    """

    metrics = ("loss", "policy_loss", "value_loss", "entropy", "episode_return", "staleness")
    direction: ClassVar = {"loss": "min", "return": "max"}
    primary_metric = "return"
    acting_models = ("model",)

    def __init__(
        self,
        *,
        unroll_length: Annotated[int, Ge(1)] = 20,
        discount: Annotated[float, Ge(0), Le(1)] = 0.99,
        value_cost: Annotated[float, Ge(0)] = 0.5,
        entropy_cost: Annotated[float, Ge(0)] = 0.01,
        rho_clip: Annotated[float, Gt(0)] = 1.0,
        c_clip: Annotated[float, Gt(0)] = 1.0,
        reward_scale: Annotated[float, Gt(0)] = 1.0,
    ) -> None:
        self.unroll_length = unroll_length
        self._discount = discount
        self._value_cost = value_cost
        self._entropy_cost = entropy_cost
        self._rho_clip = rho_clip
        self._c_clip = c_clip
        self._reward_scale = reward_scale
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        if parts.env is None:
            raise ConfigError("task (impala) learns from an environment; add env=<choice>")
        if parts.env.num_actions is None:
            raise ConfigError(
                "task (impala) needs numbered actions (Discrete), and those of env are vectors; "
                "choose another env or task"
            )
        self.models = {"model": parts.model(outputs=parts.env.num_actions + 1)}
        self.optimizers = {"model": parts.optimizer()}

    def act(
        self, observations: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Draw actions from the policy, which explore enough; `logits`, [N, A], are recorded."""
        logits, _ = self._outputs(observations, training=False)
        action = tf.random.stateless_categorical(logits, 1, seed)[:, 0]
        return {"action": action, "logits": logits}

    def act_greedily(self, observations: tf.Tensor) -> tf.Tensor:
        return tf.argmax(self._outputs(observations, training=False)[0], axis=-1)

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        metrics = dict(
            step.minimize(self._loss, batch, self.models["model"], self.optimizers["model"])
        )
        # The mean of an example's sum over the episodes that end in it is not theirs: two sums are.
        returns, _ = metrics.pop("return_sum")
        episodes, _ = metrics.pop("episodes")
        return {**metrics, "episode_return": (returns, episodes)}

    def _loss(self, batch: Batch) -> PerExample:
        """Return the loss of each unroll, [B]."""
        observations = batch["observation"]
        size, rows = int(observations.shape[0]), int(observations.shape[1])
        flat = tf.reshape(observations, [size * rows, *observations.shape[2:]])
        logits, values = self._outputs(flat, training=True)
        logits = tf.reshape(logits, [size, rows, -1])[:, :-1]
        values = tf.reshape(values, [size, rows])
        is_step = batch["is_step"]
        log_probs = _log_probability(logits, batch["action"])
        targets, advantages = vtrace(
            log_probs - _log_probability(batch["logits"], batch["action"]),
            self._reward_scale * batch["reward"],
            self._discount * (1.0 - batch["terminated"]),
            values,
            is_step,
            rho_clip=self._rho_clip,
            c_clip=self._c_clip,
        )
        all_log_probs = tf.nn.log_softmax(logits)
        entropies = -tf.reduce_sum(tf.exp(all_log_probs) * all_log_probs, axis=-1)
        policy_loss = _mean(-advantages * log_probs, is_step)
        value_loss = _mean(tf.square(targets - values[:, :-1]), is_step) / 2.0
        entropy = _mean(entropies, is_step)
        losses = policy_loss + self._value_cost * value_loss - self._entropy_cost * entropy
        return losses, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "staleness": batch["staleness"],
            "return_sum": tf.reduce_sum(batch["episode_return"], axis=1),
            "episodes": tf.reduce_sum(batch["episode_end"], axis=1),
        }

    def _outputs(self, observations: tf.Tensor, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return logits, [N, A], and values, [N], both float32; pixels of 8 bits become [0, 1]."""
        scale = 1.0 / 255.0 if observations.dtype == tf.uint8 else 1.0
        features = tf.cast(observations, tf.float32) * scale
        outputs = tf.cast(self.models["model"](features, training=training), tf.float32)
        return outputs[:, :-1], outputs[:, -1]


def _log_probability(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Return the log-probability of the actions, [B, T], from logits, [B, T, A]."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)


def _mean(values: tf.Tensor, is_step: tf.Tensor) -> tf.Tensor:
    """Return the mean over the frames of each unroll, [B], from [B, T]; resets count as 0."""
    return tf.reduce_mean(values * is_step, axis=1)


def vtrace(
    log_ratios: tf.Tensor,
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    values: tf.Tensor,
    is_step: tf.Tensor,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the V-trace targets of a batch of unrolls (Espeholt et al. 2018, section 4.1).

    With rho_s = min(rho, pi/mu), c_s = min(c, pi/mu) and the temporal difference
    delta_s = rho_s (r_s + gamma_s V(x_{s+1}) - V(x_s)) they obey

        v_s - V(x_s) = delta_s + gamma_s c_s (v_{s+1} - V(x_{s+1}))

    with v_T = V(x_T); the advantages are rho_s (r_s + gamma_s v_{s+1} - V(x_s)). A row that is no
    step has weights of 0, so its target is the value itself, and what came before it bootstraps
    from that.

    Args:
        log_ratios: log pi(a|x) - log mu(a|x), of the new policy and of that which acted, [B, T].
        rewards: [B, T].
        discounts: gamma, and 0 where the episode has terminated, [B, T].
        values: V(x), [B, T + 1].
        is_step: 0 for rows that only reset the environment, else 1, [B, T].
        rho_clip: bound of the weights of temporal differences; sets what the targets converge to.
        c_clip: bound of the weights of traces; sets how fast they do.

    Returns:
        v_s, the target of each observation's value, and the advantages: [B, T] float32 both.
    """
    ratios = tf.exp(log_ratios) * is_step
    rho = tf.minimum(rho_clip, ratios)
    traces = discounts * tf.minimum(c_clip, ratios)
    deltas = rho * (rewards + discounts * values[:, 1:] - values[:, :-1])
    length = int(rewards.shape[1])
    correction = tf.zeros_like(deltas[:, 0])
    corrections = []
    for row in reversed(range(length)):
        correction = deltas[:, row] + traces[:, row] * correction
        corrections.append(correction)
    targets = values[:, :-1] + tf.stack(corrections[::-1], axis=1)
    following = tf.concat([targets[:, 1:], values[:, -1:]], axis=1)
    advantages = rho * (rewards + discounts * following - values[:, :-1])
    return tf.stop_gradient(targets), tf.stop_gradient(advantages)
