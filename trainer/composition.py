"""Composes an experiment of overrides, as the command line does. No TensorFlow."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
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
    except (*EXPECTED, RecursionError) as error:
        raise ConfigError(*explain(error)) from error


def composed(overrides: list[str], config_dir: str | None) -> tuple[DictConfig, dict[str, Any]]:
    """Composes rewritten overrides; gives the configuration, and the choice in each group."""
    with searched(config_dir), hydra.initialize_config_module("trainer.conf", version_base="1.3", job_name="steadfast"):
        found = hydra.compose("config", overrides, return_hydra_config=True)
    choices = dict(found.hydra.runtime.choices)
    with flag_override(found, ["struct", "readonly"], [False, False]):
        del found["hydra"]
    return found, choices


class Composer:
    """Composes many experiments as `compose` does, but faster: what their choices in groups come to is composed once.

    Args:
        config_dir: a directory with more choices, as in `--config-dir`.
    """

    def __init__(self, config_dir: str | None) -> None:
        self._config_dir = config_dir
        self._known: dict[tuple[str | None, ...], tuple[DictConfig, dict[str, Any]]] = {}

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Parses overrides as Hydra does for a sweep: those that a recipe brings (hydra.sweeper.params) first; the last one of a key holds.

        Raises:
            ConfigError: one is no override.
        """
        try:
            parsed = self._parse(overrides, self._config_dir)[0]
            recipe = next((item for item in parsed if item.get_key_element() == "experiment"), None)
            brought = self._parse(self._varied(recipe), self._config_dir)[0] if recipe else []
            return list({item.get_key_element(): item for item in [*brought, *parsed]}.values())
        except EXPECTED as error:
            raise ConfigError(*explain(error)) from error

    def compose(self, overrides: Sequence[str]) -> Experiment:
        """Composes and checks an experiment.

        Raises:
            ConfigError: with all problems that were found.
        """
        try:
            rewritten, config_dir = rewrite(list(overrides), self._config_dir)
            parsed, groups = self._parse(rewritten, config_dir)
            chosen = [item for item, is_choice in zip(rewritten, groups, strict=True) if is_choice]
            if (key := (config_dir, *chosen)) not in self._known:
                self._known[key] = composed(chosen, config_dir)
            made, choices = copy.deepcopy(self._known[key])
            values = [item for item, is_choice in zip(parsed, groups, strict=True) if not is_choice]
            ConfigLoaderImpl._apply_overrides_to_config(values, made)  # what Hydra does last, too
            return config.load(made, choices)
        except EXPECTED as error:
            raise ConfigError(*explain(error)) from error

    def _varied(self, recipe: Override) -> list[str]:
        """Gives what a recipe varies, as overrides."""
        names = list(recipe.sweep_string_iterator()) if recipe.is_sweep_override() else [recipe.get_value_element_as_str()]
        for name in names:
            with searched(self._config_dir), hydra.initialize_config_module("trainer.conf", version_base="1.3"):
                found = hydra.compose("config", [f"experiment={name}"], return_hydra_config=True)
            params = found.hydra.sweeper.params or {}
            if params and len(names) > 1:
                raise ConfigError(f"experiment ({name}) brings what is varied itself ({', '.join(params)}); choose it alone")
        return [f"{key}={values}" for key, values in params.items()]

    def _parse(self, overrides: Sequence[str], config_dir: str | None) -> tuple[list[Override], list[bool]]:
        """Gives parsed overrides, and of each whether it chooses in a group (or is for Hydra itself) and sets no key."""
        with searched(config_dir), hydra.initialize_config_module("trainer.conf", version_base="1.3"):
            loader: Any = GlobalHydra.instance().config_loader()
            parsed = OverridesParser.create(loader).parse_overrides(list(overrides))  # a glob asks the loader for the choices
            groups = [
                item.is_hydra_override() or (loader.repository.group_exists(item.key_or_group) and not isinstance(item.value(), dict))
                for item in parsed
            ]
            return parsed, groups
