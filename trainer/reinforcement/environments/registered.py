"""Environments that are registered in gymnasium."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium

from trainer.annotations import Structural


def registered(
    *, id: Annotated[str, Structural()], options: dict[str, Any] | None = None
) -> gymnasium.Env:
    """Make an environment by its name.

    Args:
        id: the name, such as `CartPole-v1`; `module:name` imports a module first.

    Raises:
        ValueError: there is no such environment, or it needs a package that is missing.
    """
    try:
        # Its checks of each step are for an environment in the making.
        return gymnasium.make(id, disable_env_checker=True, **(options or {}))
    except gymnasium.error.Error as error:
        raise ValueError(f"id ({id}): {' '.join(str(error).split())}") from error
