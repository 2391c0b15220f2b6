"""Environments: Catch, and those that have a name."""

import numpy as np

from trainer.reinforcement.environments.catch import Catch
from trainer.reinforcement.environments.registered import registered


def play(environment, seed, policy):
    """Return the rewards of an episode; `policy` gets the columns of ball and paddle."""
    observation, _ = environment.reset(seed=seed)
    rewards, is_over = [], False
    while not is_over:
        picture = observation[..., 0]
        ball = int(picture[:-1].sum(axis=0).argmax())
        observation, reward, is_over, truncated, _ = environment.step(
            policy(ball, int(picture[-1].argmax()))
        )
        assert not truncated
        rewards.append(reward)
    return rewards


def test_paddle_that_follows_the_ball_catches_it():
    environment = Catch()
    for seed in range(5):
        rewards = play(environment, seed, lambda ball, paddle: 1 + np.sign(ball - paddle))
        assert rewards == [0.0] * 8 + [1.0]


def test_environment_is_made_with_its_options():
    environment = registered(id="CartPole-v1", options={"max_episode_steps": 7})
    assert environment.spec.max_episode_steps == 7
