"""Catch: its picture, its rewards, its end."""

import numpy as np

from trainer.reinforcement.environments.catch import Catch


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


def test_observation_is_a_picture_of_its_space():
    environment = Catch(rows=4, columns=3)
    observation, _ = environment.reset(seed=1)
    assert environment.observation_space.contains(observation)
    assert observation.shape == (4, 3, 1)
    assert observation.sum() == 2.0
