"""Leaves out the options that a recipe sets for a choice which the command line has replaced.

`task=hinge` beside a recipe that sets `task.label_smoothing`, for example: Hydra merges that option
into a task which has none. No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override

from trainer.cli.overrides import override_key, section
from trainer.config.options import targets
from trainer.config.rules.groups import TARGET_GROUPS


def drop_replaced(config: DictConfig, overrides: Sequence[str], loader: Any) -> None:
    """Leave out what a recipe sets for other choices than those of the command line.

    Only what the new choice does not have: a learning rate is any optimizer's.

    Args:
        config: what the overrides compose to; changed in place.
        overrides: those that choose.
        loader: Hydra's loader of configurations.
    """
    recipe = [item for item in overrides if override_key(item) == "experiment"]
    if not recipe or len(recipe) == len(overrides):
        return
    chosen = _choices(config)
    alone = _choices(loader.load_configuration("config", recipe, RunMode.RUN))
    # From the outside in: a task, then its nodes.
    for name in sorted({*chosen, *alone}, key=len):
        if chosen.get(name) != alone.get(name):
            _drop_unknown(config, section(name))


def _drop_unknown(config: DictConfig, key: str) -> None:
    """Remove the options that the target of a node does not have."""
    node = OmegaConf.select(config, key)
    if not isinstance(node, DictConfig):
        return
    if "_target_" not in node:  # of a group in which nothing is chosen
        OmegaConf.update(config, key, None, force_add=True)
        return
    with flag_override(config, ["struct", "readonly"], [False, False]):
        for name in targets.unknown_options(node, key):
            del node[name]


def _choices(config: DictConfig) -> Mapping[str, Any]:
    """Return the choices of targets, also those within others."""
    choices = config.hydra.runtime.choices
    groups = {name: name.partition("@")[0].partition("/")[0] for name in choices}
    return {name: choices[name] for name, group in groups.items() if group in TARGET_GROUPS}
