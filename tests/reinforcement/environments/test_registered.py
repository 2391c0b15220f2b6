"""Environments by their name."""

import pytest

from trainer.reinforcement.environments.registered import registered


def test_environment_is_made_with_its_options():
    environment = registered(id="CartPole-v1", options={"max_episode_steps": 7})
    assert environment.spec.max_episode_steps == 7


def test_unknown_name_is_a_wrong_value():
    with pytest.raises(ValueError, match=r"^id \(CartPol-v1\): .*CartPol"):
        registered(id="CartPol-v1")
