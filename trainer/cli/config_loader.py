"""Hydra's loader of configurations, for our choices and a user's own. No TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin

from trainer.config import yaml_text
from trainer.config.schema import GROUPS
from trainer.errors import ConfigError

_OURS = ("config.yaml", "schema")
"""What is ours alone in a directory of choices."""


class _UserSearchPath(SearchPathPlugin):
    """Has the user's directory searched first.

    Hydra searches its own `--config-dir` last, and so ignores a file there that has the name of
    one of ours.
    """

    directory: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.directory is not None:
            search_path.prepend(
                "--config-dir", f"file://{self.directory}", SearchPathQuery(provider="main")
            )


class FileConfigSource(file_config_source.FileConfigSource):
    """The user's files; one whose aliases multiply its values is refused before it is loaded."""

    # It has the name of Hydra's, which a launcher's job registers again: Hydra compares names.

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.is_file():
            yaml_text.check(path.read_text(encoding="utf-8"), str(path))
        return super().load_config(config_path)


def found_directory() -> str | None:
    """Return the directory `conf` of the working directory, if it holds choices of the user's.

    It holds some if it has a directory named as a group. One with a `config.yaml` is not taken: it
    is that of another program, or of a checkout of this one.
    """
    directory = os.path.abspath("conf")
    is_whole = any(os.path.exists(os.path.join(directory, name)) for name in _OURS)
    has_group = any(os.path.isdir(os.path.join(directory, group)) for group in GROUPS)
    return directory if has_group and not is_whole else None


@contextlib.contextmanager
def config_loader(config_dir: str | Path | None) -> Iterator[Any]:
    """Initialize Hydra and yield its config loader.

    Args:
        config_dir: a directory with more choices; those of the same name replace ours.

    Raises:
        ConfigError: it is no directory, or holds what a user cannot replace.
    """
    directory = None if config_dir is None else os.path.abspath(config_dir)
    if directory is not None:
        _check_directory(directory)
    Plugins.instance().register(_UserSearchPath)
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
    previous = _UserSearchPath.directory
    _UserSearchPath.directory = directory
    try:
        with hydra.initialize_config_module(
            "trainer.conf", version_base="1.3", job_name="steadfast"
        ):
            yield GlobalHydra.instance().config_loader()
    finally:
        _UserSearchPath.directory = previous


def _check_directory(directory: str) -> None:
    if not os.path.isdir(directory):
        raise ConfigError(f"--config-dir ({directory}): no such directory")
    for name in _OURS:
        if os.path.exists(os.path.join(directory, name)):
            raise ConfigError(
                f"--config-dir ({directory}): {name} is a name of ours; put choices in files such "
                "as model/mine.yaml, and values that belong together in experiment/mine.yaml"
            )
