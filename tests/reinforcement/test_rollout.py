"""Environments side by side: rows, resets, time limits, whole episodes."""

import gymnasium
import numpy as np

from tests.support.toy_envs import Corridor
from trainer.reinforcement.rollout import EnvironmentGroup, run_episodes, spec_of, unroll


def group(count=1, **options):
    return EnvironmentGroup([Corridor(**options) for _ in range(count)], seed=0)


def go_on(observations):
    return {"action": np.ones(len(observations), np.int64), "extra": observations * 2}


def test_unroll_has_a_row_that_resets_after_the_end_of_an_episode():
    arrays = unroll(group(length=2), go_on, 5)
    assert arrays["observation"][0, :, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert arrays["reward"][0].tolist() == [0, 1, 0, 0, 1]
    assert arrays["terminated"][0].tolist() == [0, 1, 0, 0, 1]
    assert arrays["is_step"][0].tolist() == [1, 1, 0, 1, 1]
    assert arrays["episode_end"][0].tolist() == [0, 1, 0, 0, 1]
    assert arrays["episode_return"][0].tolist() == [0, 1, 0, 0, 1]
    assert arrays["episode_length"][0].tolist() == [0, 2, 0, 0, 2]
    assert arrays["extra"].shape == (1, 5, 1)


def test_time_limit_ends_an_episode_without_terminating_it():
    arrays = unroll(group(length=9, limit=2), go_on, 3)
    assert arrays["terminated"][0].tolist() == [0, 0, 0]
    assert arrays["episode_end"][0].tolist() == [0, 1, 0]
    assert arrays["is_step"][0].tolist() == [1, 1, 0]
    assert arrays["observation"][0, :, 0].tolist() == [0, 1, 2, 0]


def test_next_unroll_begins_where_the_last_one_ended():
    environments = group(count=2, length=3)
    first = unroll(environments, go_on, 2)
    second = unroll(environments, go_on, 2)
    np.testing.assert_array_equal(first["observation"][:, -1], second["observation"][:, 0])
    assert second["episode_length"].tolist() == [[3, 0], [3, 0]]


def test_each_episode_counts_once_however_long_the_others_are():
    environments = EnvironmentGroup([Corridor(length=2), Corridor(length=5)], seed=0)
    episodes = run_episodes(environments, lambda x: np.ones(len(x), np.int64), lambda: None)
    assert episodes["episode_length"].tolist() == [2, 5]
    assert episodes["return"].tolist() == [1, 1]


def test_spec_of_numbered_actions_and_of_vectors():
    spec = spec_of(Corridor())
    assert (spec.observation_shape, spec.num_actions, spec.num_outputs) == ((1,), 2, 2)
    environment = Corridor()
    environment.action_space = gymnasium.spaces.Box(-2.0, 2.0, (3,))
    spec = spec_of(environment)
    assert (spec.num_actions, spec.num_outputs, spec.high) == (None, 3, (2.0, 2.0, 2.0))
