"""V-trace: value targets from what an older policy did (Espeholt et al. 2018, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class VTrace:
    """The targets of an unroll.

    Attributes:
        values: v_s, the target of each observation's value, [B, T] float32.
        advantages: rho_s (r_s + gamma_s v_{s+1} - V(x_s)), [B, T] float32.
    """

    values: tf.Tensor
    advantages: tf.Tensor


@dataclass(frozen=True)
class Clips:
    """Where importance weights are clipped.

    Attributes:
        rho: of the temporal differences; it sets what the targets converge to.
        c: of the traces; it sets how fast they do.
    """

    rho: float = 1.0
    c: float = 1.0


def vtrace(
    log_ratios: tf.Tensor,
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    values: tf.Tensor,
    is_step: tf.Tensor,
    clips: Clips,
) -> VTrace:
    """Return the V-trace targets of a batch of unrolls.

    With rho_s = min(rho, pi/mu), c_s = min(c, pi/mu) and the temporal difference
    delta_s = rho_s (r_s + gamma_s V(x_{s+1}) - V(x_s)) they obey

        v_s - V(x_s) = delta_s + gamma_s c_s (v_{s+1} - V(x_{s+1}))

    with v_T = V(x_T). A row that is no step has weights of 0, so its target is the value itself,
    and what came before it bootstraps from that.

    Args:
        log_ratios: log pi(a|x) - log mu(a|x), of the new policy and of that which acted, [B, T].
        rewards: [B, T].
        discounts: gamma, and 0 where the episode has terminated, [B, T].
        values: V(x), [B, T + 1].
        is_step: 0 for rows that only reset the environment, else 1, [B, T].
        clips: where the weights are clipped.
    """
    ratios = tf.exp(log_ratios) * is_step
    rho = tf.minimum(clips.rho, ratios)
    traces = discounts * tf.minimum(clips.c, ratios)
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
    return VTrace(tf.stop_gradient(targets), tf.stop_gradient(advantages))
