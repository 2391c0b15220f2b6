"""Environments for tests."""

from __future__ import annotations

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """A corridor of `length` cells: action 1 moves on, 0 back; the end gives 1 and terminates.

    After `limit` steps the episode is truncated. An observation is the cell, [1] float32.
    """

    def __init__(self, *, length: int = 4, limit: int = 8) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, float(length), (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.limit = length, limit
        self.cell = self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        self.cell = max(0, self.cell + (1 if action else -1))
        is_over = self.cell == self.length
        return self.observation(), float(is_over), is_over, self.steps == self.limit, {}

    def observation(self):
        return np.array([self.cell], np.float32)
