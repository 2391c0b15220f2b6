"""Catch: the smallest environment of pixels (Mnih et al. 2014, section 4.2)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium
import numpy as np

from trainer.annotations import Ge


class Catch(gymnasium.Env):
    """A ball falls from the top of a picture; the paddle in its last row is to be below it.

    An observation is a picture, [rows, columns, 1] float32, with 1 where ball and paddle are.
    Action 0 moves the paddle to the left, 1 leaves it, 2 moves it to the right. An episode ends
    when the ball reaches the last row: with a reward of 1 if it was caught, else -1.
    """

    def __init__(
        self, *, rows: Annotated[int, Ge(2)] = 10, columns: Annotated[int, Ge(2)] = 5
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (rows, columns, 1), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._rows = rows
        self._columns = columns
        self._row = 0
        self._column = 0
        self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = 0
        self._column = int(self.np_random.integers(self._columns))
        self._paddle = self._columns // 2
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._columns - 1)
        self._row += 1
        is_over = self._row == self._rows - 1
        reward = (1.0 if self._paddle == self._column else -1.0) if is_over else 0.0
        return self._picture(), reward, is_over, False, {}

    def _picture(self) -> np.ndarray:
        picture = np.zeros((self._rows, self._columns, 1), np.float32)
        picture[self._row, self._column] = 1.0
        picture[-1, self._paddle] = 1.0
        return picture
