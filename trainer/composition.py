"""Composes an experiment of overrides, as the command line does. No TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, flag_override

from trainer import config
from trainer.errors import ConfigError
from trainer.explain import EXPECTED, explain
from trainer.overrides import rewrite
from trainer.schema import Experiment
from trainer.searchpath import searched

ConfigStore.instance().store(group="schema", name="experiment", node=Experiment)


def compose(overrides: list[str], config_dir: str | Path | None = None) -> Experiment:
    """Composes and checks an experiment, just as a command line does.

    Args:
        overrides: as on the command line.
        config_dir: a directory with more choices, as in `--config-dir`.

    Raises:
        ConfigError: with all problems that were found.
    """
    try:
        return config.load(*composed(*rewrite(overrides, str(config_dir) if config_dir else None)))
    except EXPECTED as error:
        raise ConfigError(*explain(error)) from error


def composed(overrides: list[str], config_dir: str | None) -> tuple[DictConfig, dict[str, Any]]:
    """Composes rewritten overrides; gives the configuration, and the choice in each group."""
    with searched(config_dir), hydra.initialize_config_module("trainer.conf", version_base="1.3", job_name="steadfast"):
        found = hydra.compose("config", overrides, return_hydra_config=True)
    choices = dict(found.hydra.runtime.choices)
    with flag_override(found, ["struct", "readonly"], [False, False]):
        del found["hydra"]
    return found, choices
